r"""Newton's method on the dual of any closeness, through its primitives alone.

Each step solves :math:`(I/\alpha + T^\top \nabla^2 D^*(T\lambda)\, T)\,\delta = \nabla\mathcal{D}(\lambda)` by
conjugate gradients and is shortened until the gradient is shorter. The operator's eigenvalues lie above 1/α, so that
it always is for some step. KL has coordinates of its own, which are faster (:mod:`fenchel.solver.exact`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fenchel.certificate import reference_norm
from fenchel.problem import InferenceProblem

__all__ = ["conjugate_gradients", "dual_hessian", "maximise_dual", "second_order_point"]

ARMIJO = 1e-4
HALVINGS = 40
FORCING = 0.1
"""Relative residual of a Newton equation far from the solution; near it, its square root, for quadratic convergence."""

ITERATIONS = 400
"""Conjugate gradients a Newton step at most; in exact arithmetic d are enough."""


def dual_hessian(problem: InferenceProblem, lam: Tensor) -> Callable[[Tensor], Tensor]:
    r"""The operator :math:`v \mapsto v/\alpha + T^\top\nabla^2 D^*(T\lambda)\,Tv` on vectors (..., m, d)."""
    templates = problem.templates
    curvature = problem.closeness.curvature(problem.potential(lam), problem.preference.log_weights)
    return lambda v: v / problem.alpha_column + curvature(v @ templates.mT) @ templates


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor], right: Tensor, tol: Tensor | float, max_iterations: int = ITERATIONS
) -> Tensor:
    """Solve a positive definite equation for every row (..., d) until its residual is ``tol`` of the right side."""
    solution, residual = torch.zeros_like(right), right.clone()
    direction, square = residual.clone(), residual.square().sum(-1, keepdim=True)
    target = (torch.as_tensor(tol, dtype=right.dtype, device=right.device) ** 2) * square
    for _ in range(max_iterations):
        busy = square > target
        if not bool(busy.any()):
            break
        image = operator(direction)
        curved = (direction * image).sum(-1, keepdim=True)
        length = torch.where(busy & (curved > 0), square / curved, torch.zeros_like(square))
        solution = solution + length * direction
        residual = residual - length * image
        following = residual.square().sum(-1, keepdim=True)
        ratio = torch.where(busy, following / square, torch.zeros_like(square)).nan_to_num(0.0)
        direction = residual + ratio * direction
        square = following
    return solution


def second_order_point(problem: InferenceProblem) -> Tensor:
    r"""The maximiser of the dual's second-order expansion at 0, shape (..., m, d).

    .. math:: \lambda = (I/\alpha + T^\top\nabla^2 D^*(0)\,T)^{-1} z

    which for transport is :math:`\alpha(I + \tfrac\alpha\gamma\sum_i u_i\Sigma_i)^{-1}z`.

    Reference:
        Eq. (13); Appendix D, the display before eq. (44).
    """
    evidence = problem.evidence.expand(*problem.shape, -1)
    operator = dual_hessian(problem, torch.zeros_like(evidence))
    return conjugate_gradients(operator, evidence, 4 * torch.finfo(problem.dtype).eps)


def maximise_dual(
    problem: InferenceProblem, start: Tensor, *, tol: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    r"""Climb to λ* from a start (..., m, d).

    Args:
        problem: The problem.
        start: Where to begin.
        tol: Relative tolerance on λ, by :math:`\alpha\lVert\nabla\mathcal{D}\rVert` in the problem's dtype.
        max_steps: Newton steps a query may take.

    Returns:
        λ, and the steps that each query took, int64 (..., m).
    """
    lam, gradient = start, problem.dual_gradient(start)
    alpha = problem.alpha_column
    first = (alpha * problem.evidence).norm(dim=-1, keepdim=True)
    steps = torch.zeros(problem.shape, dtype=torch.int64, device=start.device)
    stalled = torch.zeros((*problem.shape, 1), dtype=torch.bool, device=start.device)
    for _ in range(max_steps):
        size = gradient.norm(dim=-1, keepdim=True)
        error = alpha * size / reference_norm(lam.norm(dim=-1, keepdim=True), first.expand_as(size))
        active = ~(error <= tol) & ~stalled
        if not bool(active.any()):
            break
        steps += active.squeeze(-1)
        right = torch.where(active, gradient, torch.zeros_like(gradient))
        forcing = error.sqrt().clamp(max=FORCING).nan_to_num(FORCING)
        step = conjugate_gradients(dual_hessian(problem, lam), right, forcing)
        lam, gradient, moved = _shortened(problem, lam, gradient, step, active)
        stalled = stalled | (active & ~moved)
    return lam, steps


def _shortened(
    problem: InferenceProblem, lam: Tensor, gradient: Tensor, step: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of the steps 1, 1/2, 1/4, ... that makes the gradient shorter, and where there was one."""
    size = gradient.norm(dim=-1, keepdim=True)
    length = torch.ones_like(size)
    waiting, moved = active, torch.zeros_like(active)
    for _ in range(HALVINGS):
        trial = torch.where(waiting, lam + length * step, lam)
        found = problem.dual_gradient(trial)
        good = waiting & (found.norm(dim=-1, keepdim=True) <= (1 - ARMIJO * length) * size)
        lam, gradient = torch.where(good, trial, lam), torch.where(good, found, gradient)
        moved, waiting = moved | good, waiting & ~good
        if not bool(waiting.any()):
            break
        length = length / 2
    return lam, gradient, moved
