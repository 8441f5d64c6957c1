"""Attention to memories that are distributions: every key a Gaussian, in one fused call."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fenchel.arguments.tensor import values_are_known
from fenchel.closeness.rounding import summed
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.certificate import AttentionCertificate, norm_of
from fenchel.functional.mixture_arguments import MixtureArguments, checked_mixture
from fenchel.functional.mixture_dual import mixture_dual_point
from fenchel.functional.mixture_preference import HeadMixtures
from fenchel.functional.output import output_at
from fenchel.functional.plain import no_error, plain_attention, plain_weights
from fenchel.functional.precision import without_autocast

__all__ = ["mixture_attention", "mixture_attention_weights", "mixture_attention_with_certificate"]


def mixture_attention(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    tol: float | None = None,
    max_steps: int = 50,
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
    given = checked_mixture(
        query,
        means,
        variances,
        value,
        log_preference=log_preference,
        alpha=alpha,
        scale=scale,
        estimator=estimator,
        dropout_p=dropout_p,
        enable_gqa=enable_gqa,
        tol=tol,
        max_steps=max_steps,
    )
    with without_autocast(query):
        if given.evidence.numel() == 0:
            return _without_evidence(given, dropout_p)
        place = given.place(mixture_dual_point(given, estimator, tol, max_steps))
        lifted, width = _same_width(given, given.lift(place))
        found = output_at(lifted, lifted.query, dropout_p)[..., :width]
        return _answer(given, place, found)


def mixture_attention_with_certificate(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    tol: float | None = None,
    max_steps: int = 50,
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
    given = checked_mixture(
        query,
        means,
        variances,
        value,
        log_preference=log_preference,
        alpha=alpha,
        scale=scale,
        estimator=estimator,
        dropout_p=dropout_p,
        enable_gqa=enable_gqa,
        tol=tol,
        max_steps=max_steps,
    )
    with without_autocast(query):
        if given.evidence.numel() == 0:
            return _without_evidence(given, dropout_p), no_error(given.lifted)
        dual = mixture_dual_point(given, estimator, tol, max_steps)
        place = given.place(dual)
        lifted, width = _same_width(given, given.lift(place))
        output = _answer(given, place, output_at(lifted, lifted.query, dropout_p)[..., :width])
        return output, _certificate(given, dual.detach())


def mixture_attention_weights(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    enable_gqa: bool = False,
    tol: float | None = None,
    max_steps: int = 50,
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
    given = checked_mixture(
        query,
        means,
        variances,
        None,
        log_preference=log_preference,
        alpha=alpha,
        scale=scale,
        estimator=estimator,
        dropout_p=0.0,
        enable_gqa=enable_gqa,
        tol=tol,
        max_steps=max_steps,
    )
    with without_autocast(query):
        nothing = given.evidence.numel() == 0
        dual = given.evidence if nothing else mixture_dual_point(given, estimator, tol, max_steps)
        lifted = replace(given.lifted, query=given.lift(given.place(dual)), alpha=1.0)
        return plain_weights(lifted).to(given.dtype)


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


def _answer(given: MixtureArguments, place: Tensor, found: Tensor) -> Tensor:
    output = given.mean(place, found) if given.value is None else found
    _check_range(given, output)
    return given.lifted.without_empty_rows(output).to(given.dtype)


def _without_evidence(given: MixtureArguments, dropout_p: float) -> Tensor:
    """Where no query, or no dimension, can tilt u: the average under the preference."""
    place = given.place(given.evidence)
    at_rest = replace(given.lifted, query=given.lift(place), alpha=1.0)
    found = plain_attention(at_rest, dropout_p)
    return (given.mean(place, found) if given.value is None else found).to(given.dtype)


def _check_range(given: MixtureArguments, output: Tensor) -> None:
    """Refuse finite arguments whose scores the dtype does not hold; a NaN that was given passes."""
    if not values_are_known(output) or bool(torch.isfinite(output).all()):
        return
    tensors = (given.evidence, given.means, given.lifted.value)
    if all(bool(torch.isfinite(x).all()) for x in tensors):
        name = str(output.dtype).removeprefix("torch.")
        raise ProblemError(
            f"mixture attention has scores or variances times evidence that {name} does not hold: give the tensors in "
            "float64, or make alpha, the query, scale or the variances smaller"
        )


@torch.no_grad()
def _certificate(given: MixtureArguments, dual: Tensor) -> AttentionCertificate:
    """Of dual points (B, H, m, d), with what rounding can hide in the shift of the mean."""
    preference = replace(HeadMixtures.of(given), resolved=True)
    hidden = preference.rounding(dual)
    assert hidden is not None  # noqa: S101 -- resolved mixtures bound it
    evidence, unmet = norm_of(given.evidence), given.evidence - dual / given.alpha
    unit = torch.finfo(dual.dtype).eps
    roundings = (2 * evidence + 4 * norm_of(dual) / given.alpha) * unit
    norm = norm_of(unmet - preference.tilted_shift(dual)) + hidden.unsqueeze(-1) + roundings
    norm = given.lifted.without_empty_rows(norm * (1 + summed(dual.shape[-1]) * unit))
    gap = given.alpha / 2 * norm.square() + norm.clamp(max=torch.finfo(dual.dtype).tiny)
    return AttentionCertificate(*(x.squeeze(-1).to(dual.dtype) for x in (gap, norm, given.alpha * norm)))
