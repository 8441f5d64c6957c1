"""Gauss and Legendre's rule on panels of an interval or a rectangle, all halved as often as asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["Rule", "legendre"]

POINTS = 16
"""Nodes of a panel, in each dimension."""

FINEST = {1: 10, 2: 4}
"""How often panels are halved at most: 16,384 nodes on an interval, 65,536 on a rectangle."""


@cache
def legendre() -> tuple[Tensor, Tensor]:
    """Nodes in (-1, 1) and weights that sum to 2, by the eigenvalues of the Jacobi matrix (Golub and Welsch)."""
    count = torch.arange(1, POINTS, dtype=torch.float64)
    off = count / (4 * count.square() - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes, 2 * vectors[0].square()


@dataclass(frozen=True)
class Rule:
    """Where integrals are taken.

    Attributes:
        edges: In each dimension the places between which panels begin, in rising order.
        accuracy: What panels are halved for: how far cumulant and mean may be from those of the rule before.
    """

    edges: tuple[tuple[float, ...], ...]
    accuracy: float

    @property
    def dimensions(self) -> int:
        """Of a place, k."""
        return len(self.edges)

    @property
    def finest(self) -> int:
        """How often panels are halved at most."""
        return FINEST[self.dimensions]

    def nodes(self, level: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Places (n, k) and the logarithms of their weights (n,), in float64, after so many halvings."""
        found = [_panels(edges, level) for edges in self.edges]
        if len(found) == 1:
            places, weights = found[0][0].unsqueeze(-1), found[0][1]
        else:
            (x, of_x), (y, of_y) = found
            places = torch.stack([part.flatten() for part in torch.meshgrid(x, y, indexing="ij")], -1)
            weights = (of_x[:, None] * of_y).flatten()
        return places.to(device), weights.log().to(device)


@cache
def _panels(edges: tuple[float, ...], level: int) -> tuple[Tensor, Tensor]:
    nodes, weights = legendre()
    parts = [torch.linspace(a, b, 2**level + 1, dtype=torch.float64) for a, b in pairwise(edges)]
    left, right = torch.cat([part[:-1] for part in parts]), torch.cat([part[1:] for part in parts])
    half = (right - left).unsqueeze(-1) / 2
    return ((left + right).unsqueeze(-1) / 2 + half * nodes).flatten(), (half * weights).flatten()
