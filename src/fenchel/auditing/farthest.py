"""The queries whose weights are kept: the farthest of every window, and the first of one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.layer import LayerProblem

__all__ = ["OF_A_WINDOW", "FarthestQueries", "FarthestSearch"]

OF_A_WINDOW = 4
"""How many queries of a window are looked at for each head."""


@dataclass(frozen=True)
class FarthestQueries:
    """The counted queries of each sequence and head with the largest total variation.

    Attributes:
        positions: Their positions, farthest first and the first of equals, or -1 where no query is left;
            (batch, heads, some).
        first_order: Their weights in the model's attention, (batch, heads, some, n).
        exact: Their weights in the exact answer, (batch, heads, some, n).
        beginning: The same two of the first queries of one window, (heads, queries, n); None where none was asked for.
    """

    positions: Tensor
    first_order: Tensor
    exact: Tensor
    beginning: tuple[Tensor, Tensor] | None = None


class FarthestSearch:
    """Keeps the farthest queries of every head while blocks go by; how queries are parted leaves no trace.

    Args:
        problem: The layer.
        beginning: A row of the batch and how many of its first queries are kept whatever they are.
    """

    def __init__(self, problem: LayerProblem, beginning: tuple[int, int] | None = None) -> None:
        groups, heads, queries = problem.queries.shape[:3]
        self._some = min(OF_A_WINDOW, queries)
        new = problem.queries.new_zeros
        self._values = new(groups, heads, self._some) - 1
        self._positions = torch.full_like(self._values, -1, dtype=torch.int64)
        self._weights = new(2, groups, heads, self._some, problem.vectors.shape[1])
        each = groups // problem.batch
        row, count = beginning or (0, 0)
        self._row = slice(row * each, (row + 1) * each)
        self._first = new(2, each, heads, count, problem.vectors.shape[1]) if count else None

    def look(
        self,
        where: tuple[slice, slice, slice],
        variation: Tensor,
        counted: Tensor,
        weights: tuple[Tensor, Tensor],
    ) -> None:
        """Look at a block of queries; those of a head come in their order.

        Args:
            where: Its groups, heads and queries.
            variation: Their total variation, (g, h, q).
            counted: Whether they count, (g, h, q).
            weights: Attention's weights and the exact ones, each (g, h * q, n).
        """
        g, h, q = where
        found = variation.masked_fill(~counted, -1)
        both = torch.cat((self._values[g, h], found), -1)
        values, order = both.sort(dim=-1, descending=True, stable=True)
        values, order = values[..., : self._some], order[..., : self._some]
        positions = torch.arange(q.start, q.start + found.shape[-1], device=found.device)
        places = torch.cat((self._positions[g, h], positions.expand_as(found)), -1).gather(-1, order)
        new, own = order >= self._some, (order - self._some).clamp(min=0)
        for number, of_rows in enumerate(weights):
            n = of_rows.shape[-1]
            kept = self._weights[number, g, h]
            chosen = of_rows.reshape(*found.shape, n).gather(2, own.unsqueeze(-1).expand(*own.shape, n))
            before = kept.gather(2, order.clamp(max=self._some - 1).unsqueeze(-1).expand(*order.shape, n))
            self._weights[number, g, h] = torch.where(new.unsqueeze(-1), chosen, before)
            self._keep_first(number, where, of_rows.reshape(*found.shape, n))
        self._values[g, h] = values
        self._positions[g, h] = places.masked_fill(values < 0, -1)

    def _keep_first(self, number: int, where: tuple[slice, slice, slice], weights: Tensor) -> None:
        """Keep what a block has of the first queries of a row."""
        if self._first is None:
            return
        g, h, q = where
        first, last = max(g.start, self._row.start), min(g.start + weights.shape[0], self._row.stop)
        end = min(q.start + weights.shape[2], self._first.shape[3])
        if first < last and q.start < end:
            heads = slice(h.start, h.start + weights.shape[1])
            part = weights[first - g.start : last - g.start, :, : end - q.start]
            groups = slice(first - self._row.start, last - self._row.start)
            self._first[number, groups, heads, q.start : end] = part

    def found(self, problem: LayerProblem) -> FarthestQueries:
        """The farthest of all blocks."""
        shape = problem.batch, -1, self._some
        first_order, exact = (weights.reshape(*shape, weights.shape[-1]) for weights in self._weights)
        beginning = None
        if self._first is not None:
            attended, inferred = (weights.flatten(0, 1) for weights in self._first)
            beginning = attended, inferred
        return FarthestQueries(self._positions.reshape(shape), first_order, exact, beginning)
