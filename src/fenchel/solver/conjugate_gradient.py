r"""Conjugate gradients for the Newton equation, in the inner product in which it is self-adjoint.

The Newton step δ on the dual solves :math:`(I + \alpha P C L)\,\delta = \rho` with the curvature C of the
closeness, :math:`\operatorname{diag} p - pp^\top` for Kullback and Leibler's (fact 4). In any coordinates the
operator is self-adjoint and positive in ⟨·,·⟩, with eigenvalues in [1, 1 + α λ_max(∇²φ)], so conjugate gradients
apply. The lifts of residuals and directions are carried along by the same recurrences, so that a step takes one
Hessian product and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.solver.coordinates import AbstractCoordinates

__all__ = ["Direction", "newton_direction"]


@dataclass(frozen=True)
class Direction:
    """A Newton direction.

    Attributes:
        step: δ, (g, r, size).
        lifted: Its lift, (g, r, n), exact to the precision of the coordinates that made it.
        products: Products with the operator that it took, a row.
    """

    step: Tensor
    lifted: Tensor
    products: int


def newton_direction(
    coordinates: AbstractCoordinates,
    alpha: Tensor,
    curvature: Callable[[Tensor], Tensor],
    residual: Tensor,
    lifted_residual: Tensor,
    square: Tensor,
    target: Tensor,
    max_iterations: int,
) -> Direction:
    r"""Solve :math:`(I + \alpha P C L)\delta = \rho` until :math:`\lVert\text{residual}\rVert^2 \le` target.

    Args:
        coordinates: Lift, pull and inner product.
        alpha: α, (g or 1, r or 1, 1).
        curvature: Multiplies lifts (g, r, n) with the closeness' curvature :math:`\nabla^2 D^*`, in new arrays.
        residual: ρ, (g, r, size).
        lifted_residual: Its lift, (g, r, n).
        square: Its squared norm, (g, r, 1).
        target: Squared norm of the residual at which a row is done, (g, r, 1). A row that starts below it stays at 0.
        max_iterations: Iterations at most.
    """
    step, lifted_step = torch.zeros_like(residual), torch.zeros_like(lifted_residual)
    direction, lifted = residual.clone(), lifted_residual.clone()
    residual = residual.clone()
    products = 0
    for iteration in range(max_iterations):
        curved = torch.addcmul(direction, alpha, coordinates.pull(curvature(lifted)))
        along = coordinates.inner(curved, direction, lifted).unsqueeze(-1)
        length = torch.where((square > target) & (along > 0), square / along, torch.zeros_like(square))
        step.addcmul_(length, direction)
        lifted_step.addcmul_(length, lifted)
        if iteration == max_iterations - 1:
            break
        residual.addcmul_(length, curved, value=-1)
        lifted_residual = coordinates.lift(residual)
        products += coordinates.products_each
        following = coordinates.inner(residual, residual, lifted_residual).unsqueeze(-1)
        if not bool((following > target).any()):
            break
        ratio = torch.where(square > 0, following / square, torch.zeros_like(square))
        direction = direction.mul_(ratio).add_(residual)
        lifted = lifted.mul_(ratio).add_(lifted_residual)
        square = following
    return Direction(step, lifted_step, products)
