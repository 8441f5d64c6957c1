"""Attention as inference: output, certificate, weights and gap, by one of three estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.closeness import AbstractCloseness, Divergence
from fenchel.errors import ProblemError
from fenchel.estimators import FirstOrder
from fenchel.functional.arguments import (
    broadcast_leading,
    checked_closeness,
    compute_dtype,
)
from fenchel.functional.exact import dual_point
from fenchel.functional.inference import (
    Inference,
    Options,
    ProblemRows,
    Variant,
)
from fenchel.functional.output import (
    LEAST_QUERIES,
    AttentionCertificate,
    certificate_at,
    output_at,
    weights_at,
)
from fenchel.preference import Discrete
from fenchel.tensors import check_finite, is_transformed

MASKS = ("attn_mask", "is_causal", "key_padding_mask", "mask")
"""Arguments of other libraries for what is a log-preference here."""


class AttentionInference(Inference):
    """Attention to points that all queries share, under any closeness; arguments as of :func:`infer`."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        closeness: AbstractCloseness | str | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> None:
        broadcast = broadcast_leading(query, key, key if value is None else value, enable_gqa)
        query, key, own_value, enable_gqa, self._added = broadcast
        super().__init__(query, key, None if value is None else own_value, enable_gqa=enable_gqa, **options)
        other = None if closeness is None else checked_closeness(closeness, self._solver.name, query)
        self._closeness = None if self._call.has_no_evidence else other
        if isinstance(self._closeness, Divergence):
            # Binding it to a preference for the first time checks its functions, here at some queries.
            rows = self._problems
            self._closeness.bind(Discrete(rows.templates[:1], rows.log_weights()[:1, :, :LEAST_QUERIES]))

    @override
    def _answer(self, result: Tensor) -> Tensor:
        result = super()._answer(result)
        return result[(0,) * self._added] if self._added else result

    @override
    def _rows(self, dtype: torch.dtype) -> ProblemRows:
        evidence, templates, log_u, alpha = self._call.problem_in(dtype)
        assert self._closeness is not None  # noqa: S101 -- softmax has its own code
        return ProblemRows(evidence, self._call.of_query_heads(templates), log_u, alpha, self._closeness)

    @override
    def _make_point(self) -> Tensor:
        if self._closeness is None:
            return dual_point(self._call, self._solver)
        if not isinstance(self._solver, FirstOrder):
            check_finite(always=True, query=self._call.query, key=self._call.key)
        return super()._make_point()

    @override
    def _make_output(self) -> Tensor:
        if self._closeness is None:
            return output_at(self._call, self._point, self._dropout_p)
        return super()._make_output()

    @override
    def _make_weights(self) -> Tensor:
        return weights_at(self._call, self._point) if self._closeness is None else super()._make_weights()

    @override
    def _make_certificate(self) -> AttentionCertificate:
        if self._closeness is not None:
            return super()._make_certificate()
        call, first_order = self._call, isinstance(self._solver, FirstOrder)
        tensors = self._point, call.key, call.value, call.log_preference
        # One pass over the keys, unless a gradient is required, for which the fused kernels are faster.
        wanted = self._has_output and "output" not in self._kept and self._dropout_p == 0
        recorded = is_transformed() or (
            torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
        )
        others = (call.value,) if wanted and not recorded else ()
        result, outputs = certificate_at(call, self._point, *others, first_order=first_order)
        for output in outputs:
            self._kept["output"] = self._answer(output.to(call.query.dtype))
        return result

    @override
    def _make_gap(self) -> Tensor:
        if self._closeness is not None:
            return super()._make_gap()
        # A difference of means, squared: in half types it would be mostly rounding.
        dtype = compute_dtype(self._call.query.dtype)
        call = self._call.to(dtype)
        # Subtracting a vector from all keys changes only rounding.
        key = call.key - call.key.detach().mean(-2, keepdim=True)
        call = replace(call, key=key, value=key)
        same = self._call.query.dtype == dtype
        dual = self._point if same else dual_point(call, self._solver)
        queries = 1 if call.log_preference_is_shared else dual.shape[2]
        mean = output_at(call, call.query.new_zeros(call.query[:, :, :queries].shape))
        gradient = (mean - output_at(call, dual)) * call.scale
        if not isinstance(self._solver, FirstOrder):
            gradient = gradient + (call.query - dual / call.alpha)
        return (call.alpha / 2 * gradient.square().sum(-1, keepdim=True)).squeeze(-1)


def infer(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    variant: Variant | None = None,
    **options: Unpack[Options],
) -> Inference:
    r"""Infer one distribution over the keys for each query; output, weights, bounds and gap are computed lazily.

    The functions of this module are shorthands: :func:`attention` is ``infer(...).output``.

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v); None if no output is needed, or if the output is the mean of the memories of a
            :class:`Mixture`.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"``, ``"second_order"``, ``"exact"``, or an object with options, such as
            ``fenchel.Exact(tol=1e-6)``.
        dropout_p: Probability with which a weight of the output is dropped.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.
        variant: A :class:`Relative`, :class:`Mixture`, :class:`Transport` or :class:`Hashing` with its own tensors;
            None if keys are points that all queries share.

    Returns:
        The :class:`Inference`.

    Raises:
        ProblemError: If the arguments are inconsistent, or the variant has no such option.
        ConvergenceError: When a result of the exact estimator is accessed and its tolerance was not reached.

    Example:
        >>> import torch
        >>> from fenchel import Exact
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> result = infer(q, k, v, estimator=Exact(tol=1e-9))
        >>> bool((result.certificate.dual_error <= 1e-8 * result.dual.norm(dim=-1)).all())
        True
        >>> torch.allclose(result.weights @ v, result.output)
        True
    """
    for name in options:
        if name not in Options.__annotations__:
            without = getattr(variant, "without", ())
            known = ", ".join(known for known in Options.__annotations__ if known not in without)
            mask = ". A mask is a log_preference, such as bool with True = attend" if name in MASKS else ""
            raise ProblemError(f"{name} is not an option of attention; expected some of {known}{mask}")
    if variant is None:
        return AttentionInference(query, key, value, **options)
    if not isinstance(variant, Variant):
        raise ProblemError(
            f"variant is {shown(variant)}; expected a Relative, Mixture, Transport or Hashing of fenchel.functional, "
            "or None"
        )
    accepted: dict[str, Any] = {**options}
    for name in variant.without:
        option = accepted.pop(name, None)
        if isinstance(option, Tensor) or option not in (None, False, 0.0):
            raise ProblemError(f"{name} is given, but {type(variant).__name__} does not support it; omit it")
    return type(variant).made_by(variant, query, key, value, **accepted)


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]) -> Tensor:
    r"""Infer one distribution over the keys for each query, and average the values under it.

    Templates are :math:`t_i = \mathtt{scale}\cdot k_i`, the evidence z is the query, and

    .. math:: o = \sum_i p_i v_i, \qquad p_i \propto u_i \exp\langle t_i, \lambda\rangle, \qquad \lambda =
        \begin{cases}
        \alpha z & \text{first order (14): softmax attention}\\
        \alpha(I + \alpha\Sigma_u)^{-1} z & \text{second order (13)}\\
        \arg\max_\lambda\ \langle\lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2
        - \log\sum_i u_i e^{\langle t_i,\lambda\rangle} & \text{exact (7)}
        \end{cases}

    First order runs on torch's fused kernels, or block by block if the preference requires a gradient, for which the
    kernels raise or allocate (m, n) arrays. The gradient of the exact estimator comes from the implicit function
    theorem (one linear solve per query), not from its steps. Half types are solved in float32.

    An accelerator is synchronised when values are read: never at first order, nor at second order if queries share
    preference and α; once per call at second order otherwise; at every step of the exact estimator. Values of arguments
    are therefore checked only on the CPU, or on every device inside ``torch.autograd.detect_anomaly()``.

    Args:
        query: (B, H, m, d). As in torch, B and H of query, key and value broadcast: they may be missing or 1.
        key: (B, H_kv, n, d). If n is 0, there is nothing to attend to.
        value: (B, H_kv, n, d_v).
        log_preference: log u up to a constant per row, floating-point with -inf where masked, or bool with True =
            attend; broadcastable to (B, H, m, n): (n,) is shared by all queries, (m, n) by all heads. Cheapest if
            shared by queries. Differentiable. ``causal_upper_left(m, n)`` and ``causal_lower_right(m, n)`` of
            ``torch.nn.attention.bias`` are accepted wherever a log-preference is.
        alpha: α > 0, the reliability of the evidence: a number, or a tensor that broadcasts to (B, H, m); (H, 1) is one
            per head.
        scale: Multiplies keys to give templates: a number, or a tensor with one element; None is 1/√d.
        closeness: D instead of the Kullback-Leibler divergence, such as :class:`fenchel.Tsallis`, whose weights can be
            exactly zero: then :math:`p = \nabla D^*(T\lambda)`, μ is the mean at λ = 0, and second order uses the
            curvature there. Its numbers may differ by head, (H, 1), and be learned. None is softmax.
        estimator: ``"first_order"``, ``"second_order"``, ``"exact"``, or an object: ``fenchel.Exact(tol=1e-6)``.
        dropout_p: Probability with which a weight is dropped; the others are divided by 1 - p. Pass 0 in evaluation.
        enable_gqa: Allow H_kv < H: H / H_kv heads of the query share each head of the key.
        tol: Tolerance of the exact estimator: ‖λ - λ*‖ ≤ tol·‖λ‖. By default 1e-5, and 1e-10 in float64.
        max_steps: Maximum number of steps of a query.

    Returns:
        (B, H, m, d_v) in the dtype of the query (autocast's, under autocast), without B or H where neither query, key
        nor value has them. A query with nothing to attend to gets zeros and no gradient.

    Raises:
        ProblemError: If the arguments are inconsistent, or a second derivative that is not implemented is taken.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Reference:
        Sections 4 and 6, eqs. (7)-(16).

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()
        >>> softmax = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        >>> torch.allclose(attention(q, k, v, log_preference=causal), softmax)
        True
        >>> attention(q, k, v, log_preference=causal, estimator="exact").shape
        torch.Size([1, 2, 5, 4])
        >>> from fenchel import Tsallis
        >>> sparse = attention_weights(q, 4 * k, log_preference=causal, closeness=Tsallis(2))      # sparsemax
        >>> bool((sparse.triu(1) == 0).all()), bool((sparse.sum(-1) - 1 < 1e-12).all())
        (True, True)
    """
    return infer(query, key, value, **options).output


def attention_with_certificate(
    query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]
) -> tuple[Tensor, AttentionCertificate]:
    r"""The output of :func:`attention`, and bounds on its distance from the exact inference.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - \hat h

    ĥ comes from the same pass over the keys, with values [V, K] in place of V. At first order the gradient is μ - ĥ:
    the certificate of softmax attention is the shift of the mean (fact 1).

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax. The bounds hold for any closeness, except that total variation is at most √(gap/2σ)
            for one with modulus of strong convexity σ.
        estimator: Estimator of output and certificate.
        dropout_p: The certificate refers to the weights before dropout.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        The output, and its :class:`AttentionCertificate` in float32 (float64 for float64), without gradient.

    Raises:
        ProblemError, ConvergenceError: As :func:`attention`.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> _, first = attention_with_certificate(q, k, v)
        >>> _, exact = attention_with_certificate(q, k, v, estimator="exact")
        >>> bool((first.gap > exact.gap).all()), bool((exact.dual_error < 1e-9).all())
        (True, True)
    """
    return infer(query, key, value, **options).certified()


def attention_weights(query: Tensor, key: Tensor, **options: Unpack[Options]) -> Tensor:
    """The weights p that :func:`attention` puts on the values, as one (B, H, m, n) array.

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: Estimator of the weights.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        (B, H, m, n) in the dtype of the query; a row with nothing to attend to is zero. Differentiable like
        :func:`attention`.

    Raises:
        ProblemError, ConvergenceError: As :func:`attention`.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> attention_weights(q, k, estimator="second_order").sum(-1).allclose(torch.ones(1, 2, 5, dtype=torch.float64))
        True
    """
    return infer(query, key, **options).weights


def gap(query: Tensor, key: Tensor, **options: Unpack[Options]) -> Tensor:
    r"""The duality gap of the estimate of :func:`attention`, differentiable.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - \hat h

    The same numbers as those of :func:`attention_with_certificate`, which have no gradient. As a term of a loss it
    trains queries, keys, preference and α to keep the closed form near the exact inference. At first order it is
    :math:`\frac\alpha2\lVert\mu - \hat h\rVert^2`, computed by attention with keys as values.

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"`` or ``"second_order"``. The exact solution has a gap of 0 up to its tolerance.
        enable_gqa: Allow H_kv < H.

    Returns:
        (B, H, m) in float32, float64 for float64; 0 for a query with nothing to attend to.

    Raises:
        ProblemError: If the arguments are inconsistent, or ``estimator`` is ``"exact"``.

    Reference:
        Fact 1 of the documentation's mathematics.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64).requires_grad_()
        >>> loss = gap(q, k).mean()
        >>> to_query, to_key = torch.autograd.grad(loss, (q, k))
        >>> to_key.shape
        torch.Size([1, 2, 5, 4])
    """
    return infer(query, key, **options).gap
