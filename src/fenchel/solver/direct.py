r"""The Newton equation by factorisation, for rows on which conjugate gradients are too slow.

In an orthonormal basis of the span of the templates, :math:`T = F Q^\top` with F (n, k) and k = min(n, d), the
Hessian is the k × k matrix :math:`I + \alpha F^\top D_p F`: symmetric, with eigenvalues at least 1, so that
Cholesky never breaks down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.solver.conjugate_gradient import Direction
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.newton import NewtonState

__all__ = ["by_factorisation", "covariance", "hessian", "span"]


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


def by_factorisation(coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
    """A direction by Cholesky factorisation, in template coordinates over the span."""
    factors = coordinates.operator
    factor = torch.linalg.cholesky(hessian(factors, state.weights, state.rows.alpha))
    step = torch.cholesky_solve(state.residual.unsqueeze(-1), factor).squeeze(-1)
    step = step.masked_fill(torch.isinf(target), 0)
    return Direction(step, coordinates.lift(step), 1)
