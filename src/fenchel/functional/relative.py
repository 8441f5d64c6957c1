"""Attention with templates that differ by query: keys plus a vector for each pair, such as one for its distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.blocks import spans
from fenchel.closeness import AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.estimators import FirstOrder
from fenchel.functional.arguments import (
    AttentionArguments,
    check_finite,
    checked_closeness,
    compute_dtype,
    dropped,
    under_autocast,
)
from fenchel.functional.certificate import AttentionCertificate, certificate_of, lost_to_rounding, norm_of
from fenchel.functional.inference import AttentionInference, Inference, Options, Variant, infer
from fenchel.tensors import WHOLE, check_indices, check_tensor, is_onnx_export, summed


class RelativeInference(Inference):
    """A call of relative attention; arguments as of :func:`fenchel.functional.infer`."""

    def __init__(
        self,
        variant: Relative,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        closeness: AbstractCloseness | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(query, key, value, **options)
        call = self._call
        if not self._has_output:
            variant = replace(variant, value_table=None)
        self._tables = _checked_tables(call, variant, options.get("scale"))
        self._closeness = checked_closeness(closeness, self._solver.name, call)
        self._call = replace(call, key=call.of_query_heads(call.key), value=call.of_query_heads(call.value))
        # At first order templates only score keys, so <z, r> can be added to the log weights.
        some_keys, first_order = key.shape[2] > 0, isinstance(self._solver, FirstOrder)
        self._as_scores = first_order and self._closeness is None and some_keys

    def _in_blocks(
        self, results: Callable[[AttentionInference], tuple[Tensor, ...]], dtype: torch.dtype | None = None
    ) -> tuple[Tensor, ...]:
        """Results of plain attention for queries with their own templates and values, a block of queries at a time.

        Dual points are cached for later results. Keys and rows of the table are added in ``dtype``, which is by default
        that of computations, not a half type.
        """
        known, parts = self._kept.get("point"), []
        shared: dict[str, Any] = {"dropout_p": self._dropout_p, "estimator": self._solver}
        dtype = compute_dtype(self._call.query.dtype) if dtype is None else dtype
        tables = {
            name: x.to(dtype) for name, x in vars(self._tables).items() if name != "index" and x is not None
        }
        tables = replace(self._tables, **tables)
        for rows, tensors, options in _by_query(self._call.to(dtype), tables, self._closeness):
            result = AttentionInference(*tensors, **shared, **options)
            if known is not None:
                result._kept["point"] = _folded(known[:, :, rows]).unsqueeze(2)
            sizes = self._call.query.shape[0], rows.stop - rows.start
            folded = result.dual, *results(result)
            parts.append([x.squeeze(2).unflatten(0, sizes).transpose(1, 2) for x in folded])
        point, *others = (torch.cat(part, 2) for part in zip(*parts, strict=True))
        self._kept.setdefault("point", point)
        return tuple(others)

    @property
    def _shared(self) -> AttentionInference:
        """Attention to the keys only, with the scores of r added to the log weights."""

        def made() -> AttentionInference:
            tensors = self._call.query, self._call.key, self._call.value
            return AttentionInference(
                *tensors, dropout_p=self._dropout_p, **_scored(self._call, self._tables)
            )

        return self._once("shared", made)

    @override
    def _make_point(self) -> Tensor:
        if self._as_scores:
            return self._shared.dual
        self._in_blocks(lambda block: ())
        return self._kept["point"]

    @override
    def _make_output(self) -> Tensor:
        if not self._as_scores:
            return self._in_blocks(lambda block: (block.output,))[0].to(self._call.query.dtype)
        table = self._tables.value_table
        if table is None:
            return self._shared.output
        weights = dropped(self.weights, self._dropout_p)
        return weights @ self._call.value + to_rows(weights, self._tables.index, table.shape[2]) @ table

    @override
    def _make_weights(self) -> Tensor:
        if not self._as_scores:
            return self._in_blocks(lambda block: (block.weights,))[0].to(self._call.query.dtype)
        return self._shared.weights

    @override
    def _make_certificate(self) -> AttentionCertificate:
        if self._as_scores:
            return _certificate(self._call, self._tables, self._point)
        # Under other closenesses bounds are of templates in float64.
        dtype, wide = self._point.dtype, None if self._closeness is None else torch.float64
        bounds = self._in_blocks(lambda block: block.certificate, wide)
        return AttentionCertificate(*(bound.to(dtype) for bound in bounds))

    @override
    def _make_gap(self) -> Tensor:
        if not self._as_scores:
            return self._in_blocks(lambda block: (block.gap,))[0]
        call, tables = _centred(self._call, self._tables)
        return (call.alpha / 2 * _shift(call, tables).square()).sum(-1)


@dataclass(frozen=True, eq=False)
class Relative(Variant):
    """Templates that differ by query, as in :func:`relative_attention`.

    Attributes:
        table: r before the scale, (B or 1, H or 1, P, d).
        index: The row of each pair, int64 (m, n) or (B, m, n); None indexes by distance.
        value_table: r', (B or 1, H or 1, P, d_v), or None.

    Example:
        >>> from fenchel.functional import infer
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> r = torch.randn(1, 2, 9, 4, dtype=torch.float64)
        >>> result = infer(q, k, v, variant=Relative(r), estimator="second_order")
        >>> torch.allclose(result.output, relative_attention(q, k, v, r, estimator="second_order"))
        True
    """

    table: Tensor
    index: Tensor | None = None
    value_table: Tensor | None = None

    made_by = RelativeInference


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    *,
    relative_value: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    r"""Infer with templates :math:`t_{ij} = \mathtt{scale}\,(k_j + r_{\pi(i,j)})`: what a key is, and where from here.

    .. math:: o_i = \sum_j p_{ij}\,(v_j + r'_{\pi(i,j)}), \qquad
        p_{ij} \propto u_{ij}\exp\bigl(\alpha\,\mathtt{scale}\,\langle z_i, k_j + r_{\pi(i,j)}\rangle\bigr)
        \text{ at first order}

    Pairs share the P rows r of a table, so softmax attention at first order needs no array of m·n·d numbers: each query
    is multiplied with every row of the table once, and the products are looked up for each pair. r is part of the
    templates, not of the preference, in the other estimators, the gap and other closenesses. Second-order and exact
    inference, and other closenesses, materialise the templates, a block of queries at a time, since every query has its
    own mean and covariance.

    Args:
        query: Evidence z, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        relative: r, (B or 1, H or 1, P, d).
        index: π, the row of each pair, int64 (m, n) or (B, m, n). None indexes by distance: P = m + n - 1, and query i
            and key j, both counted from 0, use row j - i + m - 1.
        relative_value: r', (B or 1, H or 1, P, d_v), or None.
        log_preference: As in :func:`~fenchel.functional.attention`, like all following options.
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        dropout_p: Probability with which a weight is dropped.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        (B, H, m, d_v) in the dtype of the query.

    Raises:
        ProblemError: If the arguments are inconsistent.
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
    return infer(query, key, value, variant=Relative(relative, index, relative_value), **options).output


def relative_attention_weights(
    query: Tensor,
    key: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """The weights of :func:`relative_attention`, as one (B, H, m, n) array.

    Args:
        query: Same as in :func:`relative_attention`, like all arguments.
        key: (B, H_kv, n, d).
        relative: (B or 1, H or 1, P, d).
        index: (m, n), (B, m, n) or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: Estimator of the weights.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

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
    return infer(query, key, variant=Relative(relative, index), **options).weights


def relative_attention_with_certificate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    *,
    relative_value: Tensor | None = None,
    **options: Unpack[Options],
) -> tuple[Tensor, AttentionCertificate]:
    r"""The output of :func:`relative_attention`, and bounds on its distance from the exact inference.

    At first order the gap is :math:`\tfrac\alpha2\lVert\mu_i - \hat h_i\rVert^2`, where both means are of the templates
    of query i: the differences of weights are multiplied with the keys and, summed by row of the table, with r.

    Args:
        query: Same as in :func:`relative_attention`, like all arguments.
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        relative: (B or 1, H or 1, P, d).
        index: (m, n), (B, m, n) or None.
        relative_value: (B or 1, H or 1, P, d_v), or None.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: Estimator of output and certificate.
        dropout_p: The certificate refers to the weights before dropout.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.

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
    return infer(query, key, value, variant=Relative(relative, index, relative_value), **options).certified()


def relative_gap(
    query: Tensor,
    key: Tensor,
    relative: Tensor,
    index: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """The duality gap of :func:`relative_attention`, differentiable; see :func:`fenchel.functional.gap`.

    Args:
        query: Same as in :func:`relative_attention`, like all arguments.
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
        ProblemError: If the arguments are inconsistent, or ``estimator`` is ``"exact"``.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)
        >>> nothing = torch.zeros(1, 1, 9, 4, dtype=torch.float64)
        >>> from fenchel.functional import gap
        >>> torch.allclose(relative_gap(q, k, nothing), gap(q, k))
        True
    """
    return infer(query, key, variant=Relative(relative, index), **options).gap


def _checked_tables(call: AttentionArguments, variant: Relative, scale: float | Tensor | None) -> Relative:
    """Check tables (B or 1, H or 1, P, d), multiplied by a scale that is a tensor, and rows (1 or B, 1, m, n)."""
    query, key, value = call.query, call.key, call.value
    relative, index = _checked_table("relative", variant.table, key, query), variant.index
    relative_value = variant.value_table
    if relative_value is not None:
        relative_value = _checked_table("relative_value", relative_value, value, query, relative.shape[2])
    queries, keys, rows = (x.shape[2] for x in (query, key, relative))
    if index is not None:
        index = _checked_index(index, (query.shape[0], queries, keys), rows, query)
    elif rows != queries + keys - 1:
        raise ProblemError(
            f"relative has {rows} rows and index is None; expected one row per distance, {queries} + {keys} - 1 = "
            f"{queries + keys - 1}, or index (queries, keys), the row of each pair"
        )
    if isinstance(scale, Tensor):
        wide = compute_dtype(relative.dtype)
        relative = (relative.to(wide) * scale.to(relative.device, wide).reshape(())).to(relative.dtype)
    return Relative(relative, index, relative_value)


def _checked_table(name: str, table: Any, of_keys: Tensor, query: Tensor, rows: int | None = None) -> Tensor:
    batch, heads, *_ = query.shape
    sizes = ((1, batch), (1, heads), rows, of_keys.shape[3])
    check_tensor(name, table, "(batch or 1, heads or 1, rows, dim)", sizes=sizes, like=query)
    check_finite(**{name: table})
    return under_autocast(table)


def _checked_index(index: Any, sizes: tuple[int, int, int], rows: int, query: Tensor) -> Tensor:
    form = "(queries, keys), or (batch, queries, keys), of rows of relative"
    check_tensor("index", index, form, dtypes=WHOLE, device=query.device)
    if tuple(index.shape) not in (sizes, sizes[1:]):
        raise ProblemError(f"index has shape {tuple(index.shape)}; expected {form}: {sizes[1:]} or {sizes}")
    check_indices("index", index, 0, rows, f"rows of relative, from 0 to {rows - 1}")
    return index.unsqueeze(-3) if index.dim() == 3 else index[None, None]


def _scored(call: AttentionArguments, tables: Relative) -> dict[str, Any]:
    """Options of plain attention to the keys, with the scores of r added to the log weights."""
    evidence = (call.query * (call.alpha * call.scale)).to(call.query.dtype)
    scores = of_pairs(evidence @ tables.table.mT, tables.index, call.key.shape[2])
    if (log_u := call.log_preference) is not None:
        scores = torch.where(log_u, scores, -torch.inf) if log_u.dtype == torch.bool else scores + log_u
    alpha = call.alpha.squeeze(-1) if isinstance(call.alpha, Tensor) else call.alpha
    return {"log_preference": scores, "scale": call.scale, "alpha": alpha}


def _centred(call: AttentionArguments, tables: Relative) -> tuple[AttentionArguments, Relative]:
    """The call in the dtype of bounds, with centred keys and rows, which changes only rounding."""
    dtype = compute_dtype(call.query.dtype)
    key, table = (x.to(dtype) for x in (call.key, tables.table))
    key, table = (x - x.detach().mean(-2, keepdim=True) for x in (key, table))
    return replace(call, query=call.query.to(dtype), key=key), replace(tables, table=table)


def _shift(call: AttentionArguments, tables: Relative) -> Tensor:
    """The shift of the mean μ - ĥ at first order, (B, H, m, d)."""
    result = infer(call.query, call.key, **_scored(call, tables)).weights
    no_evidence = call.query.new_zeros(*call.query.shape[:3], 1), torch.zeros_like(call.key[..., :1])
    apart = infer(*no_evidence, log_preference=call.log_preference).weights - result
    shift = apart @ call.key + to_rows(apart, tables.index, tables.table.shape[2]) @ tables.table
    return shift * call.scale


@torch.no_grad()
def _certificate(call: AttentionArguments, tables: Relative, dual: Tensor) -> AttentionCertificate:
    """The certificate at λ = αz, with the rounding of the shift of the mean, and of λ to a half type."""
    call, tables = _centred(call, tables)
    shift, scale, alpha, dtype = _shift(call, tables), abs(call.scale), call.alpha, call.query.dtype
    of_keys, of_rows = (norm_of(x).amax(-2, keepdim=True) for x in (call.key, tables.table))
    radius = scale * (of_keys + of_rows)
    length = norm_of(call.query * alpha)
    lost = lost_to_rounding(call, length, length * radius, (radius, radius), dtype, has_levels=True)
    # αz is rounded; no covariance exceeds the squared radius.
    unit = torch.finfo(dtype).eps
    norm = torch.minimum(norm_of(shift) + lost, length * radius.square()) + length / alpha * unit
    if dual.dtype != dtype:
        norm = norm + norm_of(dual.to(dtype) - call.query * alpha) * (1 / alpha + radius.square())
    norm = norm * (1 + (summed(call.query.shape[-1]) + 16) * unit)
    return certificate_of(norm, alpha, dtype)


# Maximum number of entries of templates in memory, but at least one query of every head.
BLOCK_ENTRIES = 2**24


def _by_query(
    call: AttentionArguments, tables: Relative, closeness: AbstractCloseness | None
) -> Iterator[tuple[slice, tuple[Tensor, ...], dict[str, Any]]]:
    """Blocks of queries, moved into the batch dimension, as calls of plain attention: range, tensors and options."""
    index = tables.index
    (batch, heads, queries, dim), keys = call.query.shape, call.key.shape[2]
    size = max(1, BLOCK_ENTRIES // max(1, batch * heads * keys * max(dim, call.value.shape[3])))
    if index is None:
        index = distance_index(queries, keys, call.query.device)[None, None]
    for rows in spans(max(1, queries), size):

        def of_rows(x: Tensor, rows: slice = rows) -> Tensor:
            return _folded(x.expand(batch, heads, queries, -1)[:, :, rows]).unsqueeze(2)

        own = index[:, :, rows]
        templates = call.key.unsqueeze(2) + _of_pairs(tables.table, own)
        value = call.value.unsqueeze(2).expand(-1, -1, own.shape[2], -1, -1)
        if tables.value_table is not None:
            value = value + _of_pairs(tables.value_table, own)
        options: dict[str, Any] = {"scale": call.scale, "alpha": call.alpha}
        if isinstance(call.alpha, Tensor):
            options["alpha"] = of_rows(call.alpha).squeeze(-1)
        if closeness is not None:
            options["closeness"] = closeness.with_numbers(
                lambda x, of_rows=of_rows: of_rows(x.unsqueeze(-1)).squeeze(-1) if x.dim() else x
            )
        if call.log_preference is not None:
            options["log_preference"] = of_rows(call.log_preference)
        tensors = of_rows(call.query), _folded(templates), _folded(value)
        yield slice(rows.start, rows.start + own.shape[2]), tensors, options


def _of_pairs(table: Tensor, index: Tensor) -> Tensor:
    """Rows of (B or 1, H or 1, P, d) for pairs (B or 1, 1, b, n): (B or 1, H or 1, b, n, d)."""
    if index.shape[0] == 1:
        return table[:, :, index[0, 0]]
    batch = torch.arange(index.shape[0], device=index.device)[:, None, None, None]
    heads = torch.arange(table.shape[1], device=index.device)[None, :, None, None]
    return table.expand(index.shape[0], -1, -1, -1)[batch, heads, index]


def _folded(tensor: Tensor) -> Tensor:
    """(B, H, b, ...) as (B·b, H, ...)."""
    return tensor.transpose(1, 2).flatten(0, 1)


def of_pairs(by_row: Tensor, index: Tensor | None, keys: int) -> Tensor:
    """Entries of queries by row of a table as entries by key.

    Args:
        by_row: (..., m, P), an entry for every row of the table.
        index: The row of each pair, int64, broadcasting to (..., m, n); None is the distance j - i + m - 1, which needs
            no gather: a matrix whose rows shift by one is a view with another stride.
        keys: n.

    Returns:
        (..., m, n).

    Example:
        >>> of_pairs(torch.arange(8).view(2, 4), None, keys=3)
        tensor([[1, 2, 3],
                [4, 5, 6]])
    """
    queries, rows = by_row.shape[-2:]
    if index is None and torch.compiler.is_exporting() and not is_onnx_export():
        # Whether the shifted rows are contiguous depends on the number of tokens.
        index = distance_index(queries, keys, by_row.device)
    if index is not None:
        return by_row.gather(-1, index.expand(*by_row.shape[:-1], keys))
    if queries < 2:
        return by_row.reshape(*by_row.shape[:-1], keys)
    start, step = queries - 1, rows - 1
    read = by_row.flatten(-2)[..., start : start + queries * step]
    return read.unflatten(-1, (queries, step))[..., :keys]


def to_rows(of_pair: Tensor, index: Tensor | None, rows: int) -> Tensor:
    """The transpose of :func:`of_pairs`: entries of pairs, (..., m, n), summed by row of the table, (..., m, P).

    Example:
        >>> to_rows(torch.tensor([[1, 2, 3], [4, 5, 6]]), None, rows=4)
        tensor([[0, 1, 2, 3],
                [4, 5, 6, 0]])
    """
    queries, keys = of_pair.shape[-2:]
    if index is not None:
        zeros = of_pair.new_zeros(*of_pair.shape[:-1], rows)
        return zeros.scatter_add(-1, index.expand(of_pair.shape), of_pair)
    if queries < 2:
        return of_pair.reshape(*of_pair.shape[:-1], rows)
    wide = torch.nn.functional.pad(of_pair, (0, rows - 1 - keys)).flatten(-2)
    return torch.nn.functional.pad(wide, (queries - 1, 1)).unflatten(-1, (queries, rows))


def distance_index(queries: int, keys: int, device: torch.device) -> Tensor:
    """The row j - i + m - 1 of every pair, int64 (m, n)."""
    i = torch.arange(queries, device=device).unsqueeze(-1)
    return torch.arange(keys, device=device) - i + (queries - 1)
