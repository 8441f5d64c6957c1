r"""The gradient of a dual point under any closeness, from the equation that it solves.

A residual r(λ, data) that is zero at λ, with the positive definite operator H = -∂r/∂λ, gives dλ = H⁻¹ ∂r/∂data
(fact 8). The residual is differentiated by autograd at a fixed λ, so that whatever the closeness is made of gets its
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.adjoint.second_derivative import differentiated_once
from fenchel.problem import InferenceProblem
from fenchel.solver.dual_newton import conjugate_gradients, dual_hessian

__all__ = ["implicit_dual_point"]


def implicit_dual_point(problem: InferenceProblem, estimator: str, dual: Tensor) -> Tensor:
    r"""A dual point that a solver found, joined to the problem's data.

    Args:
        problem: The problem, whose data may require gradients.
        estimator: ``"exact"``, where the residual is :math:`\nabla\mathcal{D}(\lambda)`, or ``"second_order"``, where
            it is :math:`z - \lambda/\alpha - T^\top\nabla^2 D^*(0)\,T\lambda`.
        dual: λ, (..., m, d), which is taken for the solution.

    Returns:
        The same numbers, with gradients to everything that the problem is made of.
    """
    fixed = dual.detach()
    if estimator == "exact":
        residual, at = problem.dual_gradient(fixed), fixed
    else:
        at = torch.zeros_like(fixed)
        residual = problem.evidence - dual_hessian(problem, at)(fixed)
    return _Implicit.apply(residual.expand_as(fixed), fixed, problem, at)


class _Implicit(torch.autograd.Function):
    """λ, as a function of the residual that it makes zero."""

    @staticmethod
    def forward(residual: Tensor, dual: Tensor, problem: InferenceProblem, at: Tensor) -> Tensor:
        return dual.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        residual, _, ctx.problem, at = inputs
        ctx.save_for_backward(residual, at)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        residual, at = ctx.saved_tensors
        return _solved(gradients[0], at, ctx.problem, residual), None, None, None


def _solve(gradient: Tensor, at: Tensor, problem: InferenceProblem, residual: Tensor) -> Tensor:
    """H⁻¹ times a gradient. The residual is there for what depends on the data in a second derivative."""
    tol = 1e-13 if at.dtype == torch.float64 else 1e-7
    return conjugate_gradients(dual_hessian(problem, at), gradient, tol)


_solved = differentiated_once(_solve, "an estimate")
