"""Rows of a table that pairs of query and key share: read for every pair, and added up again, in m·n numbers."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distance_index", "of_pairs", "to_rows"]


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
