"""What relative attention adds to keys and values by pair: checked, read for every pair, and written out in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.closeness import AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.functional.arguments import checked
from fenchel.functional.operator import compute_dtype
from fenchel.layout import spans
from fenchel.tensors import (
    WHOLE,
    broadcasts_to,
    check_device,
    check_dtype,
    check_finite,
    check_tensor,
    checked_scale,
    values_are_known,
    without_causal_bias,
)

__all__ = [
    "RelativeArguments",
    "by_query",
    "checked_relative",
    "distance_index",
    "in_blocks",
    "of_pairs",
    "to_rows",
]


@dataclass(frozen=True)
class RelativeArguments:
    """Arguments of a call that fit together.

    Attributes:
        query: z, (B, H, m, d).
        key: (B, H, n, d), of every head of the query.
        value: (B, H, n, d_v).
        relative: r, (B or 1, H or 1, P, d).
        index: int64 (1 or B, 1, m, n), or None for distances.
        relative_value: (B or 1, H or 1, P, d_v), or None.
        log_preference: As it was given.
        alpha: A number, or (B or 1, H or 1, m or 1).
        scale: A number; a tensor has been multiplied into keys and r.
        closeness: D, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    relative: Tensor
    index: Tensor | None
    relative_value: Tensor | None
    log_preference: Tensor | None
    alpha: float | Tensor
    scale: float
    closeness: AbstractCloseness | None

    @property
    def column(self) -> float | Tensor:
        """α, a number or (B or 1, H or 1, m or 1, 1)."""
        return self.alpha.unsqueeze(-1) if isinstance(self.alpha, Tensor) else self.alpha

    @property
    def pair_index(self) -> Tensor:
        """The row of r for each pair, (1 or B, 1, m, n)."""
        if self.index is not None:
            return self.index
        return distance_index(self.query.shape[2], self.key.shape[2], self.query.device)[None, None]

    @property
    def centred(self) -> RelativeArguments:
        """The same in the dtype of bounds, without what keys share, and rows, which changes only rounding."""
        dtype = compute_dtype(self.query.dtype)
        key, relative = (x.to(dtype) for x in (self.key, self.relative))
        key, relative = (x - x.detach().mean(-2, keepdim=True) for x in (key, relative))
        return replace(self, query=self.query.to(dtype), key=key, relative=relative)


def checked_relative(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor,
    index: Tensor | None,
    relative_value: Tensor | None,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    closeness: AbstractCloseness | None = None,
    **options: Any,
) -> RelativeArguments:
    """The arguments of a relative attention call, if they fit together.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    checked(query, key, value, log_preference=log_preference, alpha=alpha, scale=scale, **options)
    _check_table("relative", relative, key, query)
    check_finite(relative=relative, relative_value=relative_value)
    if relative_value is not None:
        _check_table("relative_value", relative_value, value, query)
        if relative_value.shape[2] != relative.shape[2]:
            raise ProblemError(
                f"relative_value has {relative_value.shape[2]} rows and relative {relative.shape[2]}; expected one "
                "table of each pair, with as many rows"
            )
    queries, keys, rows = query.shape[2], key.shape[2], relative.shape[2]
    log_preference = without_causal_bias("log_preference", log_preference, queries, keys, query.device)
    if index is not None:
        index = _checked_index(index, (query.shape[0], queries, keys), rows, query)
    elif rows != queries + keys - 1:
        raise ProblemError(
            f"relative has {rows} rows and index is None; expected one row a distance, {queries} + {keys} - 1 = "
            f"{queries + keys - 1}, or an index (queries, keys) of which row a pair has"
        )
    if scale is None:
        scale = max(query.shape[-1], 1) ** -0.5
    scale = checked_scale(scale, query)
    if isinstance(scale, Tensor):
        key, relative, scale = key * scale.to(key.dtype), relative * scale.to(relative.dtype), 1.0
    if isinstance(alpha, Tensor):
        alpha = alpha.to(query.device).reshape((1,) * (3 - alpha.dim()) + tuple(alpha.shape))
    sharing = query.shape[1] // max(1, key.shape[1])
    if sharing > 1:
        key, value = (part.repeat_interleave(sharing, 1) for part in (key, value))
    return RelativeArguments(
        query, key, value, relative, index, relative_value, log_preference, alpha, float(scale), closeness
    )


def _check_table(name: str, table: Any, rows_of: Tensor, query: Tensor) -> None:
    check_tensor(name, table, "(batch or 1, heads or 1, rows, dim)", dims=4)
    check_device(name, table, query.device)
    check_dtype(name, table, query.dtype)
    wanted = (*query.shape[:2], table.shape[2], rows_of.shape[3])
    if table.shape[3] != wanted[3] or not broadcasts_to(tuple(table.shape), wanted):
        raise ProblemError(
            f"{name} has shape {tuple(table.shape)}; expected (batch or 1, heads or 1, rows, dim) = "
            f"({wanted[0]} or 1, {wanted[1]} or 1, rows, {wanted[3]})"
        )


def _checked_index(index: Any, sizes: tuple[int, int, int], rows: int, query: Tensor) -> Tensor:
    form = "(queries, keys), or (batch, queries, keys), of rows of relative"
    check_tensor("index", index, form, dtypes=WHOLE)
    check_device("index", index, query.device)
    if tuple(index.shape) not in (sizes, sizes[1:]):
        raise ProblemError(f"index has shape {tuple(index.shape)}; expected {form}: {sizes[1:]} or {sizes}")
    if values_are_known(index) and index.numel():
        least, most = int(index.min()), int(index.max())
        if least < 0 or most >= rows:
            wrong = least if least < 0 else most
            raise ProblemError(f"index holds {wrong}; expected rows of relative, from 0 to {rows - 1}")
    return index.unsqueeze(-3) if index.dim() == 3 else index[None, None]


def of_pairs(by_row: Tensor, index: Tensor | None, keys: int) -> Tensor:
    """What every query has for every row of a table, as what it has for every key.

    Args:
        by_row: (..., m, P), an entry for every row of the table.
        index: The row of each pair, int64, broadcasting to (..., m, n); None is the distance j - i + m - 1, for which
            nothing is looked up: a matrix whose rows move by one is the same memory read in longer rows.
        keys: n.

    Returns:
        (..., m, n).

    Example:
        >>> of_pairs(torch.arange(8).view(2, 4), None, keys=3)
        tensor([[1, 2, 3],
                [4, 5, 6]])
    """
    queries, rows = by_row.shape[-2:]
    if index is not None:
        return by_row.gather(-1, index.expand(*by_row.shape[:-1], keys))
    if queries == 1:
        return by_row
    start, step = queries - 1, rows - 1
    read = by_row.flatten(-2)[..., start : start + queries * step]
    return read.unflatten(-1, (queries, step))[..., :keys]


def to_rows(of_pair: Tensor, index: Tensor | None, rows: int) -> Tensor:
    """The transpose of :func:`of_pairs`: what pairs have, (..., m, n), added up by row of the table, (..., m, P).

    Example:
        >>> to_rows(torch.tensor([[1, 2, 3], [4, 5, 6]]), None, rows=4)
        tensor([[0, 1, 2, 3],
                [4, 5, 6, 0]])
    """
    queries, keys = of_pair.shape[-2:]
    if index is not None:
        zeros = of_pair.new_zeros(*of_pair.shape[:-1], rows)
        return zeros.scatter_add(-1, index.expand(of_pair.shape), of_pair)
    if queries == 1:
        return of_pair
    wide = torch.nn.functional.pad(of_pair, (0, rows - 1 - keys)).flatten(-2)
    return torch.nn.functional.pad(wide, (queries - 1, 1)).unflatten(-1, (queries, rows))


def distance_index(queries: int, keys: int, device: torch.device) -> Tensor:
    """The row j - i + m - 1 of every pair, int64 (m, n)."""
    i = torch.arange(queries, device=device).unsqueeze(-1)
    return torch.arange(keys, device=device) - i + (queries - 1)


BLOCK_ENTRIES = 2**24
"""Numbers of templates that are written out at once, at most, but for one query of every head."""


def in_blocks(given: RelativeArguments, answer: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What an op of plain attention answers for every query with its own templates and values.

    Args:
        given: Checked arguments.
        answer: From query, key and value, and keyword arguments of :func:`fenchel.functional.attention`, to tensors
            (B, H, m, ...); called with the queries as a further batch, (B·b, H, 1, d).

    Returns:
        Those tensors, (B, H, m, ...).
    """
    batch = given.query.shape[0]
    parts = [
        tuple(_folded_back(part, batch, count) for part in answer(*call, **options))
        for call, options, count in by_query(given)
    ]
    return tuple(torch.cat(part, 2) for part in zip(*parts, strict=True))


def by_query(
    given: RelativeArguments,
) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], int]]:
    """Blocks of the call as calls of plain attention, queries being a further batch: tensors, options, how many."""
    batch, heads, queries, dim = given.query.shape
    keys, wide = given.key.shape[2], max(dim, given.value.shape[3])
    size = max(1, BLOCK_ENTRIES // max(1, batch * heads * keys * wide))
    full = (batch, heads, queries, keys)
    index, log_u, alpha = given.pair_index, given.log_preference, given.alpha
    for rows in spans(max(1, queries), size):
        own = index[:, :, rows]
        templates = given.key.unsqueeze(2) + _of_pairs(given.relative, own)
        value = given.value.unsqueeze(2).expand(-1, -1, own.shape[2], -1, -1)
        if given.relative_value is not None:
            value = value + _of_pairs(given.relative_value, own)
        options: dict[str, Any] = {"scale": given.scale, "closeness": given.closeness, "alpha": alpha}
        if isinstance(alpha, Tensor):
            options["alpha"] = _folded(alpha.expand(full[:3])[:, :, rows])
        if log_u is not None:
            options["log_preference"] = _folded(log_u.expand(full)[:, :, rows])
        yield (
            (_folded(given.query[:, :, rows]), _one_each(templates), _one_each(value)),
            options,
            own.shape[2],
        )


def _of_pairs(table: Tensor, index: Tensor) -> Tensor:
    """Rows of (B or 1, H or 1, P, d) for pairs (B or 1, 1, b, n): (B or 1, H or 1, b, n, d)."""
    if index.shape[0] == 1:
        return table[:, :, index[0, 0]]
    batch = torch.arange(index.shape[0], device=index.device)[:, None, None, None]
    heads = torch.arange(table.shape[1], device=index.device)[None, :, None, None]
    return table.expand(index.shape[0], -1, -1, -1)[batch, heads, index]


def _one_each(tensor: Tensor) -> Tensor:
    """(B, H, b, n, d) as (B·b, H, n, d)."""
    return tensor.transpose(1, 2).flatten(0, 1)


def _folded(tensor: Tensor) -> Tensor:
    """(B, H, b, ...) as (B·b, H, 1, ...)."""
    return tensor.transpose(1, 2).flatten(0, 1).unsqueeze(2)


def _folded_back(found: Tensor, batch: int, count: int) -> Tensor:
    """(B·b, H, 1, ...) as (B, H, b, ...)."""
    return found.squeeze(2).unflatten(0, (batch, count)).transpose(1, 2)
