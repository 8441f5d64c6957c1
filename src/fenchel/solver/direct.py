r"""The Newton equation by factorisation, for rows on which conjugate gradients are too slow.

In an orthonormal basis of the span of the templates, :math:`T = F Q^\top` with F (n, k) and k = min(n, d), the
Hessian is the k × k matrix :math:`I + \alpha F^\top D_p F`: symmetric, with eigenvalues at least 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.solver.conjugate_gradient import Direction
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.newton import NewtonState

__all__ = ["by_factorisation", "covariance", "hessian", "solve_shifted", "span"]

ILL_CONDITIONED = 1e12
"""Size of the Hessian above which its Cholesky factor says little of directions in which it is near 1."""


def span(templates: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates F (g, n, k) of templates (g, n, d) in an orthonormal basis Q (g, d, k) of a space that holds them."""
    n, d = templates.shape[-2:]
    if d <= n:
        return templates, torch.eye(d, dtype=templates.dtype, device=templates.device).expand(
            len(templates), d, d
        )
    basis, triangle = torch.linalg.qr(templates.mT)
    return triangle.mT, basis


def covariance(factors: Tensor, weights: Tensor) -> Tensor:
    r""":math:`F^\top (\operatorname{diag} p - pp^\top) F` for F (g, n, k) and p (g, r, n); (g, r, k, k)."""
    means = weights @ factors
    offsets = factors.unsqueeze(1) - means.unsqueeze(2)
    return offsets.mT @ (weights.unsqueeze(-1) * offsets)


def hessian(factors: Tensor, weights: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`I + \alpha F^\top D_p F` for F (g, n, k), p (g, r, n) and α (g or 1, r or 1, 1); (g, r, k, k)."""
    matrix = alpha.unsqueeze(-1) * covariance(factors, weights)
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


def solve_shifted(factors: Tensor, weights: Tensor, alpha: Tensor, right: Tensor) -> Tensor:
    r"""Solve :math:`(I + \alpha F^\top D_p F)\,x = b` for every row.

    By Cholesky factorisation; where α‖F‖² is so large that rounding leaves the matrix no longer positive definite, by
    the orthogonal factorisation of :math:`[I; \sqrt{\alpha D_p}\,F]`, whose square it is.

    Args:
        factors: F, (g, n, k).
        weights: p, (g, r, n).
        alpha: α, (g or 1, r or 1, 1).
        right: b, (g, r, k, c).

    Returns:
        x, (g, r, k, c); zero where numbers overflow.
    """
    matrix = hessian(factors, weights, alpha)
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    solution = torch.cholesky_solve(right, factor)
    singular = (failed != 0) | ~(largest <= ILL_CONDITIONED)
    if bool(singular.any()):
        groups, rows = torch.nonzero(singular, as_tuple=True)
        p = weights[groups, rows].unsqueeze(-1)
        offsets = factors[groups] - p.mT @ factors[groups]
        scaled = (alpha.expand(*weights.shape[:2], 1)[groups, rows].unsqueeze(-1) * p).sqrt() * offsets
        identity = torch.eye(scaled.shape[-1], dtype=scaled.dtype, device=scaled.device).expand(
            len(scaled), -1, -1
        )
        triangle = torch.linalg.qr(torch.cat([identity, scaled], 1).nan_to_num(), mode="r").R
        half = torch.linalg.solve_triangular(triangle.mT, right[groups, rows], upper=False)
        found = torch.linalg.solve_triangular(triangle, half, upper=True)
        solution[groups, rows] = torch.where(torch.isfinite(found), found, 0)
    return solution


def by_factorisation(coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
    """A direction by Cholesky factorisation, in template coordinates over the span."""
    step = solve_shifted(coordinates.operator, state.weights, state.rows.alpha, state.residual.unsqueeze(-1))
    step = step.squeeze(-1)
    step = step.masked_fill(torch.isinf(target), 0)
    return Direction(step, coordinates.lift(step), 1)
