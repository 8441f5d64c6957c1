r"""The equation of a Newton step solved to rounding: what second order, and every gradient, comes down to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.closeness.response import AbstractResponse
from fenchel.selection import gather_rows, rows_where, select
from fenchel.solver.conjugate_gradient import newton_direction
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.direct import solve_shifted

__all__ = ["HessianSolution", "solve_hessian"]

ITERATIONS = 60
"""Conjugate gradients before rows that are not done are factorised."""


@dataclass(frozen=True)
class HessianSolution:
    r"""Solutions x of :math:`(I + \alpha\nabla^2\varphi)\,x = b`.

    Attributes:
        vectors: x, (g, r, size).
        lifted: Their lift, (g, r, n).
    """

    vectors: Tensor
    lifted: Tensor


def solve_hessian(
    coordinates: AbstractCoordinates,
    response: AbstractResponse,
    argument: Tensor,
    weights: Tensor,
    alpha: Tensor,
    right: Tensor,
) -> HessianSolution:
    r"""Solve :math:`(I + \alpha\nabla^2\varphi)\,x = b` for every row, to the rounding of the dtype.

    In closed form where the response has one; else by conjugate gradients (the operator is symmetric with eigenvalues
    in [1, 1 + α λ_max]), and rows on which they do not get there are factorised.

    Args:
        coordinates: In which the vectors are written; an orthonormal basis.
        response: Whose curvature is meant.
        argument: Where, (g, r, n).
        weights: The weights there, (g, r, n).
        alpha: α, (g or 1, r or 1, 1).
        right: b, (g, r, size).
    """
    closed = response.resolvent(argument, alpha, right)
    if closed is not None:
        return HessianSolution(closed, coordinates.lift(closed))
    square = right.square().sum(-1, keepdim=True)
    target = square * (8 * torch.finfo(right.dtype).eps) ** 2
    curvature = response.curvature(argument, weights)
    found = newton_direction(
        coordinates, alpha, curvature, right, coordinates.lift(right), square, target, ITERATIONS
    )
    left = torch.addcmul(found.step, alpha, coordinates.pull(curvature(found.lifted)))
    # What conjugate gradients carry along as their residual drifts from the true one by a few roundings.
    missed = (left - right).square().sum(-1) > (64**2 * target).squeeze(-1)
    if not bool(missed.any()):
        return HessianSolution(found.step, found.lifted)
    index = rows_where(missed if response.selectable else torch.ones_like(missed))
    part = select(response, index) if response.selectable else response
    at, of_rows, b = (gather_rows(rows, index) for rows in (argument, weights, right))
    factors, a = coordinates.factors, gather_rows(alpha, index)
    if response.selectable:
        at, of_rows, b, factors, a = (tensor.double() for tensor in (at, of_rows, b, factors, a))
    solved = solve_shifted(part, at, of_rows, factors, a, b.unsqueeze(-1)).squeeze(-1)
    step = found.step.scatter(1, index.unsqueeze(-1).expand_as(solved), solved.to(right.dtype))
    return HessianSolution(step, coordinates.lift(step))
