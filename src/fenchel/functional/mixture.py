"""Attention to memories that are distributions: every key a Gaussian, in one fused call, by each estimator."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.conjugate import conjugate_of
from fenchel.errors import ConvergenceError
from fenchel.functional.arguments import AttentionArguments, refuse_overflow
from fenchel.functional.exact import by_inverse, preference_weights, solved_dual_point
from fenchel.functional.inference import (
    AttentionCertificate,
    Inference,
    Options,
    Variant,
    certificate_of,
    no_error,
    norm_of,
    refuse_exact,
)
from fenchel.functional.mixture_preference import HeadMixtures, MixtureArguments, checked_mixture
from fenchel.functional.operator import untraced, without_autocast
from fenchel.functional.output import output_at, plain_attention, weights_at
from fenchel.problem import Problem
from fenchel.rounding import summed
from fenchel.tensors import check_not_mapped

__all__ = [
    "Mixture",
    "mixture_attention",
    "mixture_attention_weights",
    "mixture_attention_with_certificate",
    "mixture_dual_point",
]


@dataclass(frozen=True)
class Mixture(Variant):
    """Keys that are means of Gaussians, as of :func:`mixture_attention`; without ``value`` the output is E[x].

    Attributes:
        variances: s ≥ 0, of a shape that broadcasts to that of the keys.

    Example:
        >>> from fenchel.functional import infer
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> found = infer(q, k, variant=Mixture(k.square()))
        >>> torch.allclose(found.gap, found.certificate.gap)
        True
    """

    variances: Tensor

    without = ("closeness",)

    @override
    def inference(self, query: Tensor, key: Tensor, value: Tensor | None, **options: Any) -> Inference:
        return MixtureInference(self, query, key, value, **options)


class MixtureInference(Inference):
    """A call of mixture attention; arguments as of :func:`fenchel.functional.infer`."""

    def __init__(
        self,
        variant: Mixture,
        query: Tensor,
        means: Tensor,
        value: Tensor | None,
        *,
        dropout_p: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(means, options)  # E[x] is an output too
        self._dropout_p = dropout_p
        options = {"dropout_p": dropout_p, **self._solving, **options}
        self._given = checked_mixture(query, means, variant.variances, value, **options)

    @property
    def _nothing(self) -> bool:
        return self._given.evidence.numel() == 0

    @override
    def _make_point(self) -> Tensor:
        with without_autocast(self._given.evidence):
            return self._given.evidence if self._nothing else mixture_dual_point(self._given, **self._solving)

    @override
    def _make_dual(self) -> Tensor:
        return self._given.lifted.without_empty_rows(self._point)

    @override
    def _make_output(self) -> Tensor:
        with without_autocast(self._given.evidence):
            if self._nothing:
                return _without_evidence(self._given, self._dropout_p)
            return _answer(self._given, self._point, self._dropout_p)

    @override
    def _make_weights(self) -> Tensor:
        given = self._given
        with without_autocast(given.evidence):
            lifted = replace(given.lifted, query=given.lift(given.place(self._point)), alpha=1.0)
            return weights_at(lifted, lifted.query).to(given.dtype)

    @override
    def _make_certificate(self) -> AttentionCertificate:
        given, dual = self._given, self._point
        with torch.no_grad(), without_autocast(given.evidence):
            if self._nothing:
                return no_error(given.lifted)
            preference = replace(HeadMixtures.of(given), resolved=True)
            hidden = preference.rounding(dual)
            assert hidden is not None  # noqa: S101 -- resolved mixtures bound it
            evidence, unmet = norm_of(given.evidence), given.evidence - dual / given.alpha
            unit = torch.finfo(dual.dtype).eps
            roundings = (2 * evidence + 4 * norm_of(dual) / given.alpha) * unit
            norm = norm_of(unmet - preference.tilted_shift(dual)) + hidden.unsqueeze(-1) + roundings
            norm = given.lifted.without_empty_rows(norm * (1 + summed(dual.shape[-1]) * unit))
            return certificate_of(norm, given.alpha, dual.dtype)

    @override
    def _make_gap(self) -> Tensor:
        refuse_exact(self._estimator)
        given, dual = self._given, self._point
        with without_autocast(given.evidence):
            if self._nothing:
                return given.evidence.new_zeros(given.evidence.shape[:3])
            shift = replace(HeadMixtures.of(given), resolved=True).tilted_shift(dual)
            gradient = given.evidence - dual / given.alpha - shift
            found = given.alpha / 2 * gradient.square().sum(-1, keepdim=True)
            return given.lifted.without_empty_rows(found).squeeze(-1)


def mixture_attention(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    **options: Unpack[Options],
) -> Tensor:
    r"""Infer which of some uncertain memories a query means, and what is in it.

    The preference is a mixture of Gaussians, :math:`u = \sum_k w_k N(m_k, \operatorname{diag} s_k)` over x; templates
    are :math:`t = \mathtt{scale}\cdot x` and the evidence z is the query. With :math:`\varsigma =
    \mathtt{scale}\cdot\lambda` the tilted mixture has the responsibilities and the mean

    .. math:: r_k \propto w_k\exp\bigl(\langle m_k, \varsigma\rangle + \tfrac12\langle s_k, \varsigma^2\rangle\bigr),
        \qquad \mathbb{E}[x] = \sum_k r_k\,(m_k + s_k\circ\varsigma),

    one fused call with query [ς, ς²/2], key [m, s] and value [m, s] (fact 11). A memory that is uncertain along the
    evidence is asked more readily, and moves further. Variances of zero are softmax attention.

    Args:
        query: (B, H, m, d).
        means: (B, H_kv, n, d).
        variances: s ≥ 0, of a shape that broadcasts to that of the means; with a last dimension of 1 they are
            spherical, which costs one coordinate rather than d. In units of x: scale² multiplies them for templates.
        value: (B, H_kv, n, d_v), averaged under r; None answers with E[x], (B, H, m, d).
        log_preference: log w up to a constant a row, or bool with True = attend; as in
            :func:`~fenchel.functional.attention`.
        alpha: α > 0, a number, or a tensor that broadcasts to (B, H, m).
        scale: Makes templates of x: a number, or a tensor with one element; None is 1/√d.
        estimator: ``"first_order"``, ``"second_order"`` (exact for one component) or ``"exact"``, which is certified in
            float64 and costs several passes over the components.
        dropout_p: Probability with which a responsibility is dropped; the others are divided by 1 - p.
        enable_gqa: Allow H_kv < H.
        tol: Of the exact estimator: ‖λ - λ*‖ ≤ tol·‖λ‖. By default 1e-5, and 1e-10 in float64.
        max_steps: Steps that a query may take.

    Returns:
        (B, H, m, d_v), or (B, H, m, d) without ``value``, in the dtype of the query; half types are computed in
        float32. A query with nothing to attend to gets zeros, and passes no gradient on.

    Raises:
        ProblemError: If the arguments do not fit together, a variance is negative, or a score leaves the dtype's range.
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
    return Mixture(variances).inference(query, means, value, dropout_p=dropout_p, **options).output


def mixture_attention_with_certificate(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    **options: Unpack[Options],
) -> tuple[Tensor, AttentionCertificate]:
    r"""What :func:`mixture_attention` returns, and how far at most it is from the exact inference.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - h, \qquad h = \mathtt{scale}\cdot\mathbb{E}[x]

    Nothing is solved for it, and at first order the gradient is μ - h (fact 1). The bounds hold with what rounding does
    to them, for which μ - h is computed of centred means, beside the output.

    Args:
        query: As all arguments here, what it is in :func:`mixture_attention`.
        means: (B, H_kv, n, d).
        variances: Broadcastable to the means.
        value: (B, H_kv, n, d_v) or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        estimator: Whose output, and whose certificate.
        dropout_p: The certificate is of the responsibilities before dropout.
        enable_gqa: Allow H_kv < H.
        tol: Of the exact estimator.
        max_steps: Of the exact estimator.

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
    return Mixture(variances).inference(query, means, value, dropout_p=dropout_p, **options).certified()


def mixture_attention_weights(
    query: Tensor, means: Tensor, variances: Tensor, **options: Unpack[Options]
) -> Tensor:
    """The responsibilities r that :func:`mixture_attention` averages under, as one (B, H, m, n) array.

    Args:
        query: As all arguments here, what it is in :func:`mixture_attention`.
        means: (B, H_kv, n, d).
        variances: Broadcastable to the means.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        estimator: Whose responsibilities.
        enable_gqa: Allow H_kv < H.
        tol: Of the exact estimator.
        max_steps: Of the exact estimator.

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
    return Mixture(variances).inference(query, means, None, dropout_p=0.0, **options).weights


def _same_width(given: MixtureArguments, query: Tensor) -> tuple[AttentionArguments, int]:
    """The lifted call with keys and values of one width, which fused kernels ask for, and the width that was meant."""
    lifted = replace(given.lifted, query=query)
    wide, width = query.shape[-1], lifted.value.shape[-1]
    if wide < width:
        key = torch.nn.functional.pad(lifted.key, (0, width - wide))
        lifted = replace(lifted, query=torch.nn.functional.pad(query, (0, width - wide)), key=key)
    elif width < wide:
        lifted = replace(lifted, value=torch.nn.functional.pad(lifted.value, (0, wide - width)))
    return lifted, width


def _answer(given: MixtureArguments, dual: Tensor, dropout_p: float) -> Tensor:
    """The output at dual points, in the dtype of the query."""
    place = given.place(dual)
    lifted, width = _same_width(given, given.lift(place))
    found = output_at(lifted, lifted.query, dropout_p)[..., :width]
    output = given.mean(place, found) if given.value is None else found
    tensors = given.evidence, given.means, given.lifted.value
    what = "mixture attention has scores or variances times evidence"
    refuse_overflow(output, tensors, what, "alpha, the query, scale or the variances smaller")
    return given.lifted.without_empty_rows(output).to(given.dtype)


def _without_evidence(given: MixtureArguments, dropout_p: float) -> Tensor:
    """Where no query, or no dimension, can tilt u: the average under the preference."""
    place = given.place(given.evidence)
    at_rest = replace(given.lifted, query=given.lift(place), alpha=1.0)
    found = plain_attention(at_rest, dropout_p)
    return (given.mean(place, found) if given.value is None else found).to(given.dtype)


def mixture_dual_point(given: MixtureArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    """λ, (B, H, m, d), in the dtype of the computation.

    Args:
        given: Checked arguments.
        estimator: One of :data:`~fenchel.arguments.ESTIMATORS`.
        tol: Of the exact estimator, relative; None is its default.
        max_steps: Of the exact estimator.
    """
    alpha = given.alpha
    if estimator == "first_order":
        return given.evidence * alpha
    alpha_is_shared = not isinstance(alpha, Tensor) or alpha.shape[2] == 1
    if estimator == "second_order" and given.lifted.log_preference_is_shared and alpha_is_shared:
        return _with_one_covariance(given)
    return _solved(given, estimator, tol, max_steps)


# An iteration that looks at values is nothing to trace.
@untraced
def _solved(given: MixtureArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    check_not_mapped(f"{estimator} mixture attention", given.evidence, given.means, given.variances)
    alpha = given.alpha
    of_rows = alpha.squeeze(-1) if isinstance(alpha, Tensor) else alpha
    preference, remedy = HeadMixtures.of(given), "alpha, the variances or the norms of the means smaller"
    options = {"estimator": estimator, "tol": tol, "max_steps": max_steps, "remedy": remedy}
    with suppress(ConvergenceError):
        return solved_dual_point(Problem(conjugate_of(preference), given.evidence, of_rows), **options)
    # Where λ is small a difference of two means is rounding; what resolves it takes twice as long.
    resolved = replace(preference, resolved=True)
    return solved_dual_point(Problem(conjugate_of(resolved), given.evidence, of_rows), **options)


def _with_one_covariance(given: MixtureArguments) -> Tensor:
    """Second order where the queries of a head share one mixture and α: one d × d inverse a head, in float64."""
    sharing = given.evidence.shape[1] // given.means.shape[1]
    means, variances = (
        (x.double() * factor).repeat_interleave(sharing, 1)
        for x, factor in ((given.means, given.scale), (given.variances, given.scale**2))
    )
    weights = preference_weights(given.lifted.log_preference, means)
    centred = means - weights @ means
    within = (weights @ variances).expand(*variances.shape[:2], 1, means.shape[-1]).squeeze(2)
    covariance = centred.mT @ (weights.mT * centred) + torch.diag_embed(within)
    alpha = given.alpha.double() if isinstance(given.alpha, Tensor) else given.alpha
    return (alpha * by_inverse(alpha * covariance, given.evidence.double())).to(given.evidence.dtype)
