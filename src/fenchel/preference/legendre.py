"""Gauss and Legendre's rule on an interval."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

__all__ = ["legendre"]

POINTS = 16
"""Nodes of a panel, in each dimension."""


@cache
def legendre() -> tuple[Tensor, Tensor]:
    """Nodes in (-1, 1) and weights that sum to 2, by the eigenvalues of the Jacobi matrix (Golub and Welsch)."""
    count = torch.arange(1, POINTS, dtype=torch.float64)
    off = count / (4 * count.square() - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes, 2 * vectors[0].square()
