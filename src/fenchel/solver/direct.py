r"""The Newton equation by factorisation, for rows on which conjugate gradients are too slow.

In an orthonormal basis of the span of the templates, :math:`T = F Q^\top` with F (n, k) and k = min(n, d), the
Hessian is the k × k matrix :math:`I + \alpha F^\top \nabla^2 D^* F`: symmetric, with eigenvalues at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.blocks import AbstractBlock
from fenchel.closeness.response import AbstractResponse
from fenchel.solver.conjugate_gradient import Direction
from fenchel.solver.coordinates import AbstractCoordinates, IdentityCoordinates, TemplateCoordinates
from fenchel.solver.newton import NewtonState

__all__ = ["Span", "by_factorisation", "hessian", "solve_shifted", "span"]

ILL_CONDITIONED = 1e12
"""Size of the Hessian above which its Cholesky factor says little of directions in which it is near 1."""


@dataclass(frozen=True)
class Span:
    """A space that holds the templates of a block, in which the Hessian is no larger than it has to be.

    Attributes:
        coordinates: Over that space, or λ's own where there are no templates.
        basis: Orthonormal, (g, d, k); None where the space is everything.
    """

    coordinates: AbstractCoordinates
    basis: Tensor | None

    @classmethod
    def of(cls, block: AbstractBlock) -> Span:
        """The span of a block's templates."""
        offsets = block.offsets
        if offsets is None:
            return cls(IdentityCoordinates(block.evidence), None)
        factors, basis = span(offsets)
        return cls(TemplateCoordinates(factors), basis)

    @property
    def size(self) -> int:
        """K."""
        return self.coordinates.size

    def within(self, vectors: Tensor) -> Tensor:
        """The coordinates of vectors (g, r, d), less what is outside, (g, r, k)."""
        return vectors if self.basis is None else vectors @ self.basis

    def vectors(self, x: Tensor) -> Tensor:
        """The vectors with coordinates x (g, r, k), (g, r, d)."""
        return x if self.basis is None else x @ self.basis.mT

    def joined(self, x: Tensor, evidence: Tensor) -> Tensor:
        """The vectors with coordinates x (g, r, k) and, outside the span, where they never change, of the evidence."""
        if self.basis is None:
            return x
        outside = evidence - evidence @ self.basis @ self.basis.mT
        # Once more, since what rounding leaves inside the span is multiplied by templates that may be huge.
        outside = outside - outside @ self.basis @ self.basis.mT
        return x @ self.basis.mT + outside


def span(templates: Tensor) -> tuple[Tensor, Tensor | None]:
    """Coordinates F (g, n, k) of templates (g, n, d) in an orthonormal basis (g, d, k), which is None where k = d."""
    n, d = templates.shape[-2:]
    if d <= n:
        return templates, None
    basis, triangle = torch.linalg.qr(templates.mT)
    return triangle.mT, basis


def hessian(curvature: Tensor, alpha: Tensor) -> Tensor:
    r""":math:`I + \alpha A` for curvatures A (g, r, k, k) and α (g or 1, r or 1, 1)."""
    matrix = alpha.unsqueeze(-1) * curvature
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


def solve_shifted(
    response: AbstractResponse,
    argument: Tensor,
    weights: Tensor,
    factors: Tensor,
    alpha: Tensor,
    right: Tensor,
) -> Tensor:
    r"""Solve :math:`(I + \alpha F^\top \nabla^2 D^* F)\,x = b` for every row.

    By Cholesky factorisation; where α‖F‖² is so large that rounding leaves the matrix no longer positive definite, by
    the orthogonal factorisation of :math:`[I; \sqrt{\alpha} R]`, whose square it is for a root R of the curvature.

    Args:
        response: Whose curvature is meant.
        argument: Where, (g, r, n).
        weights: The weights there, (g, r, n).
        factors: F, (g, n, k).
        alpha: α, (g or 1, r or 1, 1).
        right: b, (g, r, k, c).

    Returns:
        x, (g, r, k, c); zero where numbers overflow.
    """
    matrix = hessian(response.curvature_matrix(argument, weights, factors), alpha)
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    solution = torch.cholesky_solve(right, factor)
    singular = (failed != 0) | ~(largest <= ILL_CONDITIONED)
    if bool(singular.any()):
        where = torch.nonzero(singular, as_tuple=True)
        root = response.curvature_root(argument, weights, factors)[where]
        scaled = alpha.expand(*singular.shape, 1)[where].unsqueeze(-1).sqrt() * root
        identity = torch.eye(scaled.shape[-1], dtype=scaled.dtype, device=scaled.device)
        stacked = torch.cat([identity.expand(len(scaled), -1, -1), scaled], 1)
        triangle = torch.linalg.qr(stacked.nan_to_num(), mode="r").R
        half = torch.linalg.solve_triangular(triangle.mT, right[where], upper=False)
        found = torch.linalg.solve_triangular(triangle, half, upper=True)
        solution[where] = torch.where(torch.isfinite(found), found, 0)
    return solution


def by_factorisation(coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
    """A direction by factorisation, in template coordinates over the span or in λ's own."""
    rows, right = state.rows, state.residual.unsqueeze(-1)
    closed = rows.response.resolvent(state.argument, rows.alpha, state.residual)
    if closed is not None:
        step = closed.masked_fill(torch.isinf(target), 0)
        return Direction(step, coordinates.lift(step), 1)
    found = solve_shifted(
        rows.response, state.argument, state.curving, coordinates.factors, rows.alpha, right
    )
    step = found.squeeze(-1).masked_fill(torch.isinf(target), 0)
    return Direction(step, coordinates.lift(step), 1)
