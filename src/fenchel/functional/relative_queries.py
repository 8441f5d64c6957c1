"""Templates that differ by query, written out: each query a problem of its own, in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fenchel.functional.relative_arguments import RelativeArguments

__all__ = ["by_query", "in_blocks"]

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
    for start in range(0, max(1, queries), size):
        rows = slice(start, min(start + size, queries))
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
