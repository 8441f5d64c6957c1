r"""The gradient of a dual point, from the equation that it solves.

A residual r(λ, data) that is zero at λ, with the positive definite operator H = -∂r/∂λ, gives dλ = H⁻¹ ∂r/∂data
(fact 8). The residual is differentiated by autograd at a fixed λ, so that whatever the problem is made of gets its
gradient, listed anywhere or not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.adjoint.second_derivative import differentiated_once
from fenchel.blocks import ConjugateBlock
from fenchel.problem import Problem
from fenchel.solver.coordinates import IdentityCoordinates
from fenchel.solver.equation import AbstractEquation
from fenchel.solver.linear import solve_hessian

__all__ = ["implicit_dual_point"]


def implicit_dual_point(problem: Problem, equation: AbstractEquation, dual: Tensor) -> Tensor:
    r"""A dual point that a solver found, joined to the problem's data.

    Args:
        problem: The problem, whose data may require gradients.
        equation: What the dual point solves.
        dual: λ, (..., m, d), which is taken for the solution.

    Returns:
        The same numbers, with gradients to everything that the problem is made of.
    """
    answer = equation.answer(problem)
    if answer is not None:
        return answer.expand_as(dual)
    fixed = dual.detach()
    residual = equation.residual(problem, fixed).expand_as(fixed)
    return _Implicit.apply(residual, fixed, problem, equation)


class _Implicit(torch.autograd.Function):
    """λ, as a function of the residual that it makes zero."""

    @staticmethod
    def forward(residual: Tensor, dual: Tensor, problem: Problem, equation: AbstractEquation) -> Tensor:
        return dual.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        residual, dual, ctx.problem, ctx.equation = inputs
        ctx.save_for_backward(residual, dual)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        residual, dual = ctx.saved_tensors
        return _solved_once(gradients[0], dual, ctx.problem, ctx.equation, residual), None, None, None


def _solved(
    gradient: Tensor, dual: Tensor, problem: Problem, equation: AbstractEquation, residual: Tensor
) -> Tensor:
    """H⁻¹ times a gradient. The residual is there for what depends on the data in a second derivative."""
    block = ConjugateBlock.of(problem)
    rows = equation.curved_at(dual).reshape(block.evidence.shape)
    found = solve_hessian(
        IdentityCoordinates(rows),
        block.response,
        rows,
        block.response.at(rows),
        block.alpha,
        (problem.alpha_column * gradient).reshape(rows.shape),
    )
    return found.vectors.reshape(gradient.shape)


_solved_once = differentiated_once(_solved, "an estimate")
