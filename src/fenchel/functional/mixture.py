r"""Attention whose keys are Gaussians, in one fused call, by each estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from fenchel.closeness import KL
from fenchel.estimators import FirstOrder, SecondOrder
from fenchel.functional.arguments import AttentionArguments, checked_scale, compute_dtype, refuse_overflow
from fenchel.functional.certificate import AttentionCertificate, ProblemRows
from fenchel.functional.exact import check_second_order, with_one_covariance
from fenchel.functional.inference import Inference, Options, Variant, infer, output_at, weights_at
from fenchel.tensors import check_entries, check_tensor


class MixtureInference(Inference):
    """A call of mixture attention; arguments as of :func:`fenchel.functional.infer`."""

    names, needs_keys = ("query", "means", "value"), True
    remedy = "alpha, the variances or the norms of the means smaller"

    def __init__(
        self,
        variant: Mixture,
        query: Tensor,
        means: Tensor,
        value: Tensor | None,
        *,
        scale: float | Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(query, means, value, scale=1.0, **options)
        self._has_output, self._returns_memories = True, value is None  # E[x] is also an output
        variances, self._dtype = variant.variances, self._call.query.dtype
        _check_variances(variances, means)
        dtype, self._scale = compute_dtype(self._dtype), max(query.shape[-1], 1) ** -0.5
        if scale is not None:
            scale = checked_scale(scale, query)
            self._scale = scale.to(dtype) if isinstance(scale, Tensor) else scale
        spherical = variances.dim() == 0 or (variances.shape[-1] == 1 and means.shape[-1] != 1)
        spread = variances.to(dtype).expand(*means.shape[:3], 1 if spherical else means.shape[3])
        components = torch.cat([means.to(dtype), spread], -1)
        call = self._call.to(dtype)
        self._call = replace(call, key=components, value=components if value is None else call.value)

    @override
    def _rows(self, dtype: torch.dtype) -> ProblemRows:
        """The call as problems whose templates are scale·x."""
        d = self._call.query.shape[-1]
        evidence, components, preference, alpha = self._call.problem_in(dtype)
        components = self._call.of_query_heads(components)
        means, variances = components[..., :d] * self._scale, components[..., d:] * self._scale**2
        return ProblemRows(evidence, means, preference, alpha, KL(), variances)

    def _lifted(self, dual: Tensor) -> tuple[AttentionArguments, Tensor]:
        """The call as attention to components, whose query is [ς, ς²/2], and ς = scale·λ."""
        scaled = dual * self._scale
        square = scaled.square()
        if self._call.key.shape[-1] != 2 * scaled.shape[-1]:
            square = square.sum(-1, keepdim=True)
        return replace(self._call, query=torch.cat([scaled, square / 2], -1), alpha=1.0), scaled

    @override
    def _make_point(self) -> Tensor:
        call, solver = self._call, self._solver
        if call.has_no_evidence or isinstance(solver, FirstOrder):
            return call.query * call.alpha
        if isinstance(solver, SecondOrder) and call.problem_is_shared:
            rows = self._rows(torch.float64)
            problem = rows.evidence, rows.templates, rows.log_preference, rows.alpha, rows.variances
            dual = with_one_covariance(*problem).to(call.query.dtype)
            check_second_order(dual, query=call.query, means=call.key)
            return dual
        call.check_not_mapped(f"{solver.name} mixture attention")
        return super()._make_point()

    @override
    def _make_output(self) -> Tensor:
        lifted, scaled_dual = self._lifted(self._point)
        # CPU kernels require equal widths.
        tensors = lifted.query, lifted.key, lifted.value
        width = max(tensor.shape[-1] for tensor in tensors)
        query, key, value = (pad(tensor, (0, width - tensor.shape[-1])) for tensor in tensors)
        padded = replace(lifted, query=query, key=key, value=value)
        output = output_at(padded, query, self._dropout_p)[..., : lifted.value.shape[-1]]
        if self._returns_memories:
            # Each memory is shifted by its variance times ς.
            d = scaled_dual.shape[-1]
            output = output[..., :d] + output[..., d:] * scaled_dual
        what = "mixture attention has scores or variances times evidence"
        remedy = "alpha, the query, scale or the variances smaller"
        refuse_overflow(output, (self._call.query, lifted.key, lifted.value), what, remedy)
        return output.to(self._dtype)

    @override
    def _make_weights(self) -> Tensor:
        lifted, _ = self._lifted(self._point)
        return weights_at(lifted, lifted.query).to(self._dtype)


@dataclass(frozen=True, eq=False)
class Mixture(Variant):
    """Keys that are means of Gaussians, as in :func:`mixture_attention`; without ``value`` the output is E[x].

    Attributes:
        variances: s ≥ 0, of a shape that broadcasts to that of the keys.

    Example:
        >>> from fenchel.functional import infer
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> result = infer(q, k, variant=Mixture(k.square()))
        >>> torch.allclose(result.gap, result.certificate.gap)
        True
    """

    variances: Tensor

    without = ("closeness",)

    made_by = MixtureInference


def _check_variances(variances: Tensor, means: Tensor) -> None:
    form = (
        "that broadcasts to (batch, heads, keys, dim) of means, with a last dimension of 1 if spherical; for full "
        "covariance matrices use fenchel.GaussianMixture"
    )
    check_tensor("variances", variances, form, broadcast=means.shape, like=means, other="means")
    check_entries(
        "variances",
        variances,
        lambda x: (x >= 0) & (x < torch.inf),
        "finite numbers of at least 0 (0 is softmax attention)",
        "variances, not their logarithms or square roots; make learned ones positive, such as by "
        "torch.nn.functional.softplus",
    )


def mixture_attention(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    r"""Infer which of several uncertain memories matches a query, and the content of the memory.

    The preference is a mixture of Gaussians, :math:`u = \sum_k w_k N(m_k, \operatorname{diag} s_k)` over x; templates
    are :math:`t = \mathtt{scale}\cdot x` and the evidence z is the query. With :math:`\varsigma =
    \mathtt{scale}\cdot\lambda` the tilted mixture has the responsibilities and the mean

    .. math:: r_k \propto w_k\exp\bigl(\langle m_k, \varsigma\rangle + \tfrac12\langle s_k, \varsigma^2\rangle\bigr),
        \qquad \mathbb{E}[x] = \sum_k r_k\,(m_k + s_k\circ\varsigma),

    computed by one fused call with query [ς, ς²/2], key [m, s] and value [m, s] (fact 11). A memory with a larger
    variance along the evidence gets more weight and a larger shift of its mean. Zero variances give softmax attention.

    Args:
        query: (B, H, m, d).
        means: (B, H_kv, n, d).
        variances: s ≥ 0, of a shape that broadcasts to that of the means; with a last dimension of 1 they are
            spherical, which costs one additional coordinate instead of d. In units of x: those of templates are scale²
            times as large.
        value: (B, H_kv, n, d_v), averaged under r; None returns E[x], (B, H, m, d).
        log_preference: log w up to a constant per row, or bool with True = attend; as in
            :func:`~fenchel.functional.attention`.
        alpha: α > 0, a number, or a tensor that broadcasts to (B, H, m).
        scale: Multiplies x to give templates: a number, or a tensor with one element; None is 1/√d.
        estimator: ``"first_order"``, ``"second_order"`` (exact for one component) or ``"exact"``, which is certified in
            float64 and costs several passes over the components.
        dropout_p: Probability with which a responsibility is dropped; the others are divided by 1 - p.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator: ‖λ - λ*‖ ≤ tol·‖λ‖. By default 1e-5, and 1e-10 in float64.
        max_steps: Maximum number of steps of a query.

    Returns:
        (B, H, m, d_v), or (B, H, m, d) without ``value``, in the dtype of the query; half types are computed in
        float32. A query with nothing to attend to gets zeros and no gradient.

    Raises:
        ProblemError: If the arguments are inconsistent, there are no keys, a variance is negative, or a score leaves
            the dtype's range.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Reference:
        Section 7; fact 11 of the documentation's mathematics.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> softmax = torch.nn.functional.scaled_dot_product_attention(q, k, k)
        >>> torch.allclose(mixture_attention(q, k, torch.zeros_like(k)), softmax)
        True
        >>> q, mean, variance = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.tensor([4.0, 0.0])
        >>> mixture_attention(q, mean, variance, scale=1.0)       # certain of its second coordinate, not of its first
        tensor([[[[4., 0.]]]])
    """
    return infer(query, means, value, variant=Mixture(variances), **options).output


def mixture_attention_with_certificate(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    **options: Unpack[Options],
) -> tuple[Tensor, AttentionCertificate]:
    r"""The output of :func:`mixture_attention`, and bounds on its distance from the exact inference.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - h, \qquad h = \mathtt{scale}\cdot\mathbb{E}[x]

    No solve is needed, and at first order the gradient is μ - h (fact 1). The bounds include rounding; for this μ - h
    is computed from centred means in a second pass.

    Args:
        query: Same as in :func:`mixture_attention`, like all arguments.
        means: (B, H_kv, n, d).
        variances: Broadcastable to the means.
        value: (B, H_kv, n, d_v) or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        estimator: Estimator of output and certificate.
        dropout_p: The certificate refers to the responsibilities before dropout.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        The output, and its :class:`AttentionCertificate` in float32 (float64 for float64), without gradient.

    Raises:
        ProblemError, ConvergenceError: As :func:`mixture_attention`.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> _, first = mixture_attention_with_certificate(q, k, k.square())
        >>> _, exact = mixture_attention_with_certificate(q, k, k.square(), estimator="exact")
        >>> bool((first.gap > exact.gap).all()), bool((exact.dual_error < 1e-9).all())
        (True, True)
    """
    return infer(query, means, value, variant=Mixture(variances), **options).certified()


def mixture_attention_weights(
    query: Tensor, means: Tensor, variances: Tensor, **options: Unpack[Options]
) -> Tensor:
    """The responsibilities r of :func:`mixture_attention`, as one (B, H, m, n) array.

    Args:
        query: Same as in :func:`mixture_attention`, like all arguments.
        means: (B, H_kv, n, d).
        variances: Broadcastable to the means.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        estimator: Estimator of the responsibilities.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        (B, H, m, n) in the dtype of the query; a row with nothing to attend to is zero. Differentiable.

    Raises:
        ProblemError, ConvergenceError: As :func:`mixture_attention`.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> r = mixture_attention_weights(q, k, torch.zeros(1, dtype=torch.float64))
        >>> torch.allclose(r, (q @ k.mT / 2).softmax(-1))
        True
    """
    return infer(query, means, variant=Mixture(variances), **options).weights
