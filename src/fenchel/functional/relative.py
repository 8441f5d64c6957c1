"""Attention whose templates differ by query: keys plus a vector of the pair, such as that of its distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness import AbstractCloseness
from fenchel.functional.attention import AttentionInference, attention_weights
from fenchel.functional.close import is_softmax
from fenchel.functional.inference import (
    DEFAULT_STEPS,
    AttentionCertificate,
    GapOptions,
    Inference,
    Options,
    Variant,
    certificate_of,
    lost_to_rounding,
    norm_of,
    refuse_exact,
)
from fenchel.functional.operator import without_autocast
from fenchel.functional.relative_arguments import (
    RelativeArguments,
    checked_relative,
    in_blocks,
    of_pairs,
    to_rows,
)
from fenchel.rounding import summed

__all__ = [
    "Relative",
    "relative_attention",
    "relative_attention_weights",
    "relative_attention_with_certificate",
    "relative_gap",
]


@dataclass(frozen=True)
class Relative(Variant):
    """Templates that differ by query, as of :func:`relative_attention`.

    Attributes:
        table: r before the scale, (B or 1, H or 1, P, d).
        index: The row of each pair, int64 (m, n) or (B, m, n); None is by distance.
        value_table: r', (B or 1, H or 1, P, d_v), or None.

    Example:
        >>> from fenchel.functional import infer
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> r = torch.randn(1, 2, 9, 4, dtype=torch.float64)
        >>> found = infer(q, k, v, variant=Relative(r), estimator="second_order")
        >>> torch.allclose(found.output, relative_attention(q, k, v, r, estimator="second_order"))
        True
    """

    table: Tensor
    index: Tensor | None = None
    value_table: Tensor | None = None

    @override
    def inference(self, query: Tensor, key: Tensor, value: Tensor | None, **options: Any) -> Inference:
        return RelativeInference(self, query, key, value, **options)


class RelativeInference(Inference):
    """A call of relative attention; arguments as of :func:`fenchel.functional.infer`."""

    def __init__(
        self,
        variant: Relative,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        dropout_p: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(value, options)
        self._dropout_p = dropout_p
        options = {"dropout_p": dropout_p, **self._solving, **options}
        value_table = None if value is None else variant.value_table
        value = key if value is None else value
        table, index = variant.table, variant.index
        self._given = given = checked_relative(query, key, value, table, index, value_table, **options)
        # At first order all that templates do is to score keys, so that <z, r> may stand where log weights do.
        self._as_scores = (
            self._estimator == "first_order" and is_softmax(given.closeness) and given.key.shape[2] > 0
        )

    def _in_blocks(self, answer: Callable[[AttentionInference], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What plain attention answers for every query with its own templates and values."""

        def answered(*call: Tensor, **own: Any) -> tuple[Tensor, ...]:
            return answer(AttentionInference(*call, dropout_p=self._dropout_p, **own, **self._solving))

        return in_blocks(self._given, answered)

    @property
    def _shared(self) -> AttentionInference:
        """Attention to the keys alone, where what r adds to the scores stands among the log weights."""

        def made() -> AttentionInference:
            given = self._given
            call = given.query, given.key, given.value
            return AttentionInference(*call, dropout_p=self._dropout_p, **_scored(given))

        return self._once("shared", made)

    @override
    def _make_point(self) -> Tensor:
        return self._shared.dual if self._as_scores else self._in_blocks(lambda found: (found.dual,))[0]

    @override
    def _make_output(self) -> Tensor:
        if not self._as_scores:
            return self._in_blocks(lambda found: (found.output,))[0]
        if self._given.relative_value is None:
            return self._shared.output
        weights = torch.dropout(self.weights, self._dropout_p, train=self._dropout_p > 0)
        return _averaged(self._given, weights)

    @override
    def _make_weights(self) -> Tensor:
        return self._shared.weights if self._as_scores else self._in_blocks(lambda found: (found.weights,))[0]

    @override
    def _make_certificate(self) -> AttentionCertificate:
        if self._as_scores:
            return _certificate(self._given)
        if not self._has_output or "output" in self._kept:
            return AttentionCertificate(*self._in_blocks(lambda found: found.certificate))

        def certified(found: AttentionInference) -> tuple[Tensor, ...]:
            output, bounds = found.certified()
            return output, *bounds

        self._kept["output"], *bounds = self._in_blocks(certified)
        return AttentionCertificate(*bounds)

    @override
    def _make_gap(self) -> Tensor:
        refuse_exact(self._estimator)
        if not self._as_scores:
            return self._in_blocks(lambda found: (found.gap,))[0]
        with without_autocast(self._given.query):
            wide = self._given.centred
            return wide.alpha / 2 * _shift(wide)[0].square().sum(-1)


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    *,
    relative_value: Tensor | None = None,
    closeness: AbstractCloseness | None = None,
    dropout_p: float = 0.0,
    **options: Unpack[Options],
) -> Tensor:
    r"""Infer with templates :math:`t_{ij} = \mathtt{scale}\,(k_j + r_{\pi(i,j)})`: what a key is, and where from here.

    .. math:: o_i = \sum_j p_{ij}\,(v_j + r'_{\pi(i,j)}), \qquad
        p_{ij} \propto u_{ij}\exp\bigl(\alpha\,\mathtt{scale}\,\langle z_i, k_j + r_{\pi(i,j)}\rangle\bigr)
        \text{ at first order}

    Pairs share the P rows r of a table, so that softmax attention at first order needs no array of m·n·d numbers: the
    second product is made with every row of the table once a query, and read for each pair. It is no preference for
    all that: the other estimators, the gap and other closenesses take r as part of the templates. Second-order and
    exact inference, and other closenesses, write the templates out, a block of queries at a time: every query has a
    mean and a covariance of its own.

    Args:
        query: Evidence z, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        relative: r, (B or 1, H or 1, P, d).
        index: π, the row of each pair, int64 (m, n) or (B, m, n). None is by distance: P = m + n - 1, and row
            j - i + m - 1 belongs to query i and key j, both counted from 0.
        relative_value: r', (B or 1, H or 1, P, d_v), or None.
        log_preference: As in :func:`~fenchel.functional.attention`, and so are the others.
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        dropout_p: Probability with which a weight is dropped.
        enable_gqa: Allow H_kv < H.
        tol: Of the exact estimator.
        max_steps: Of the exact estimator.

    Returns:
        (B, H, m, d_v) in the dtype of the query.

    Raises:
        ProblemError: If the arguments do not fit together.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Reference:
        Shaw et al. 2018, Self-attention with relative position representations, eqs. (3)-(5); Dai et al. 2019,
        Transformer-XL, appendix B, for the shift.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> r = torch.randn(1, 2, 9, 4, dtype=torch.float64)
        >>> index = torch.arange(5) - torch.arange(5).unsqueeze(1) + 4
        >>> scores = torch.einsum("bhid,bhijd->bhij", q, k.unsqueeze(2) + r[:, :, index]) / 2
        >>> torch.allclose(relative_attention(q, k, v, r), scores.softmax(-1) @ v)
        True
    """
    variant = Relative(relative, index, relative_value)
    return variant.inference(query, key, value, closeness=closeness, dropout_p=dropout_p, **options).output


def relative_attention_weights(
    query: Tensor,
    key: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    *,
    closeness: AbstractCloseness | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """The weights that :func:`relative_attention` averages under, as one (B, H, m, n) array.

    Args:
        query: As all arguments here, what it is in :func:`relative_attention`.
        key: (B, H_kv, n, d).
        relative: (B or 1, H or 1, P, d).
        index: (m, n), (B, m, n) or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: Whose weights.
        enable_gqa: Allow H_kv < H.
        tol: Of the exact estimator.
        max_steps: Of the exact estimator.

    Returns:
        (B, H, m, n) in the dtype of the query; a row with nothing to attend to is zero. Differentiable.

    Raises:
        ProblemError, ConvergenceError: As :func:`relative_attention`.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> nothing = torch.zeros(1, 1, 9, 4, dtype=torch.float64)
        >>> torch.allclose(relative_attention_weights(q, k, nothing), (q @ k.mT / 2).softmax(-1))
        True
    """
    return (
        Relative(relative, index)
        .inference(query, key, None, closeness=closeness, dropout_p=0.0, **options)
        .weights
    )


def relative_attention_with_certificate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    *,
    relative_value: Tensor | None = None,
    closeness: AbstractCloseness | None = None,
    dropout_p: float = 0.0,
    **options: Unpack[Options],
) -> tuple[Tensor, AttentionCertificate]:
    r"""What :func:`relative_attention` returns, and how far at most it is from the exact inference.

    At first order the gap is :math:`\tfrac\alpha2\lVert\mu_i - \hat h_i\rVert^2`, where both means are of the templates
    that query i sees: differences of weights, averaged over keys and, added up by row of the table, over r.

    Args:
        query: As all arguments here, what it is in :func:`relative_attention`.
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        relative: (B or 1, H or 1, P, d).
        index: (m, n), (B, m, n) or None.
        relative_value: (B or 1, H or 1, P, d_v), or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: Whose output, and whose certificate.
        dropout_p: The certificate is of the weights before dropout.
        enable_gqa: Allow H_kv < H.
        tol: Of the exact estimator.
        max_steps: Of the exact estimator.

    Returns:
        The output, and its :class:`AttentionCertificate` in float32 (float64 for float64), without gradient.

    Raises:
        ProblemError, ConvergenceError: As :func:`relative_attention`.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> r = torch.randn(1, 2, 9, 4, dtype=torch.float64)
        >>> _, first = relative_attention_with_certificate(q, k, v, r)
        >>> _, exact = relative_attention_with_certificate(q, k, v, r, estimator="exact")
        >>> bool((first.gap > exact.gap).all()), bool((exact.dual_error < 1e-9).all())
        (True, True)
    """
    variant = Relative(relative, index, relative_value)
    return variant.inference(
        query, key, value, closeness=closeness, dropout_p=dropout_p, **options
    ).certified()


def relative_gap(
    query: Tensor,
    key: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    *,
    closeness: AbstractCloseness | None = None,
    **options: Unpack[GapOptions],
) -> Tensor:
    """The duality gap of :func:`relative_attention`'s answer, differentiable; see :func:`fenchel.functional.gap`.

    Args:
        query: As all arguments here, what it is in :func:`relative_attention`.
        key: (B, H_kv, n, d).
        relative: (B or 1, H or 1, P, d).
        index: (m, n), (B, m, n) or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"`` or ``"second_order"``.
        enable_gqa: Allow H_kv < H.

    Returns:
        (B, H, m) in float32, float64 for float64; 0 for a query with nothing to attend to.

    Raises:
        ProblemError: If the arguments do not fit together, or ``estimator`` is ``"exact"``.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> nothing = torch.zeros(1, 1, 9, 4, dtype=torch.float64)
        >>> from fenchel.functional import gap
        >>> torch.allclose(relative_gap(q, k, nothing), gap(q, k))
        True
    """
    none: dict[str, Any] = {"dropout_p": 0.0, "tol": None, "max_steps": DEFAULT_STEPS}
    return Relative(relative, index).inference(query, key, None, closeness=closeness, **none, **options).gap


def _scored(given: RelativeArguments) -> dict[str, Any]:
    """Options of plain attention to the keys, with what r adds to the scores among the log-weights."""
    evidence = given.query * (given.column * given.scale)
    scores = of_pairs(evidence.to(given.query.dtype) @ given.relative.mT, given.index, given.key.shape[2])
    log_u = given.log_preference
    if log_u is not None:
        scores = torch.where(log_u, scores, -torch.inf) if log_u.dtype == torch.bool else scores + log_u
    return {"log_preference": scores, "alpha": given.alpha, "scale": given.scale}


def _averaged(given: RelativeArguments, weights: Tensor) -> Tensor:
    """The mean of the values of each pair under weights (B, H, m, n)."""
    found = weights @ given.value
    if given.relative_value is None:
        return found
    table = given.relative_value
    return found + to_rows(weights, given.index, table.shape[2]) @ table


def _shift(given: RelativeArguments) -> tuple[Tensor, Tensor]:
    """μ - ĥ at first order, (B, H, m, d), by which evidence moves the mean; and the weights of u, (B, H, m, n)."""
    found = attention_weights(given.query, given.key, **_scored(given))
    no_evidence = given.query.new_zeros(*given.query.shape[:3], 1), torch.zeros_like(given.key[..., :1])
    believed = attention_weights(*no_evidence, log_preference=given.log_preference)
    apart, table = believed - found, given.relative
    shift = apart @ given.key + to_rows(apart, given.index, table.shape[2]) @ table
    return shift * given.scale, believed


@torch.no_grad()
def _certificate(given: RelativeArguments) -> AttentionCertificate:
    """At λ = αz, with what rounding can hide in the shift of the mean."""
    with without_autocast(given.query):
        # What all templates of a query share changes only rounding.
        wide = given.centred
        shift, believed = _shift(wide)
        scale, alpha, dtype = abs(wide.scale), wide.column, wide.query.dtype
        radius = (
            norm_of(wide.key).amax(-2, keepdim=True) + norm_of(wide.relative).amax(-2, keepdim=True)
        ) * scale
        length = norm_of(wide.query * alpha)
        lost = lost_to_rounding(wide, length, length * radius, (radius, radius), dtype, has_levels=True)
        # αz is rounded; no covariance exceeds the squared radius.
        unit = torch.finfo(dtype).eps
        norm = torch.minimum(norm_of(shift) + lost, length * radius.square()) + length / alpha * unit
        norm = norm * (1 + (summed(wide.query.shape[-1]) + 16) * unit)
        norm = norm.masked_fill(believed.sum(-1, keepdim=True) == 0, 0)
        return certificate_of(norm, alpha, dtype)
