"""Dual points of a problem seen through φ alone, found by the one certified solver, for ops on tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.adjoint import implicit_dual_point
from fenchel.blocks import ConjugateBlock
from fenchel.errors import ConvergenceError
from fenchel.functional.exact import DEFAULT_TOL
from fenchel.problem import Problem
from fenchel.solver.equation import AbstractEquation, Expansion, StationaryPoint
from fenchel.solver.exact import exact
from fenchel.solver.second_order import second_order_point

__all__ = ["solved_dual_point"]


def solved_dual_point(
    problem: Problem, estimator: str, tol: float | None, max_steps: int, remedy: str
) -> Tensor:
    """λ of second order or of the exact estimator, (..., m, d), with gradients to all that the problem is made of.

    Args:
        problem: The problem.
        estimator: ``"second_order"`` or ``"exact"``.
        tol: Of the exact estimator, relative; None is its default.
        max_steps: Steps that a query may take.
        remedy: What else may help a query that does not get there, after "make".

    Raises:
        ConvergenceError: If a query does not.
    """
    dual, equation = _solution(problem, estimator, tol, max_steps, remedy)  # pyright: ignore[reportCallIssue] - disable keeps the signature
    return implicit_dual_point(problem, equation, dual) if torch.is_grad_enabled() else dual


# An iteration that looks at values is nothing to trace.
@torch.compiler.disable
def _solution(
    problem: Problem, estimator: str, tol: float | None, max_steps: int, remedy: str
) -> tuple[Tensor, AbstractEquation]:
    """The dual points (..., m, d), and the equation that they solve."""
    with torch.no_grad():
        if estimator == "exact":
            return _exact(problem, tol, max_steps, remedy), StationaryPoint()
        return second_order_point(ConjugateBlock.of(problem)).reshape(problem.evidence.shape), Expansion()


def _exact(problem: Problem, tol: float | None, max_steps: int, remedy: str) -> Tensor:
    tol = DEFAULT_TOL[problem.dtype] if tol is None else tol
    estimate = exact(problem, tol=tol, max_steps=max_steps, throw=False)
    missed = int((~estimate.converged).sum())
    if missed:
        raise ConvergenceError(
            f"{missed} of {estimate.converged.numel()} queries did not reach dual_error <= {tol:g} ||dual|| within "
            f"{max_steps} steps. Raise tol or max_steps, give the tensors in float64, or make {remedy}"
        )
    return estimate.dual
