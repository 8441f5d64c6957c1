"""Rows and matrices: one for all rows, or each row its own."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["rows_solved", "rows_times"]


def rows_times(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Rows (..., m, a) times matrices (..., m or 1, a, b) of their own or one for all, (..., m, b)."""
    if matrix.dim() == 2:
        return vectors @ matrix
    if matrix.shape[-3] == 1:
        return vectors @ matrix.squeeze(-3)
    return (vectors.unsqueeze(-2) @ matrix).squeeze(-2)


def rows_solved(vectors: Tensor, factor: Tensor) -> Tensor:
    r"""Rows :math:`L^{-1} v` of triangular factors (..., m or 1, d, d) of their own or one for all, (..., m, d)."""
    if factor.dim() > 2 and factor.shape[-3] > 1:
        return torch.linalg.solve_triangular(factor, vectors.unsqueeze(-1), upper=False).squeeze(-1)
    shared = factor if factor.dim() == 2 else factor.squeeze(-3)
    return torch.linalg.solve_triangular(shared, vectors.mT, upper=False).mT
