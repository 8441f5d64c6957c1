"""Estimates of problems that require gradients: solved without, then joined to what they depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fenchel.adjoint.implicit import implicit_dual_point
from fenchel.arguments.tensor import check_not_mapped
from fenchel.errors import DomainError, ProblemError
from fenchel.estimate import Estimate
from fenchel.problem import Problem
from fenchel.solver import estimator_with

__all__ = ["solve_with_gradients"]


def solve_with_gradients(problem: Problem, estimator: str, /, **options: Any) -> Estimate:
    """Solve a problem; where its data require gradients, the answer's dual, weights and mean carry them.

    Bounds, steps and ``converged`` never do. What an iterative solver found is taken for the solution, so where it
    did not converge the gradients are off as much as it is.

    Args:
        problem: The problem.
        estimator: Name of the estimator.
        **options: Of the estimator.

    Raises:
        ProblemError: If there is no such estimator, or none of its gradients.
    """
    solver = estimator_with(estimator, options)
    check_not_mapped("an inference problem", *problem.tensors().values())
    wanted = problem.wants_gradients()
    if wanted and solver.equation is None:
        raise ProblemError(
            f"{' and '.join(wanted)} require gradients, which {estimator!r} does not carry; solve under "
            "torch.no_grad(), or give detached tensors"
        )
    with torch.no_grad():
        estimate = solver(problem, **options)
    if not wanted or solver.equation is None:
        return estimate
    _refuse_border(problem, estimate)
    dual = implicit_dual_point(problem, solver.equation, estimate.dual)
    weights, shift = problem.conjugate.infer(dual)
    return replace(estimate, dual=dual, inferred=weights, mean=problem.conjugate.mean_by(dual, shift))


def _refuse_border(problem: Problem, estimate: Estimate) -> None:
    """Refuse gradients at dual points that rounding put out of the domain of log M, where there are none.

    Raises:
        DomainError: Saying how many queries these are.
    """
    inside = problem.conjugate.inside(estimate.dual)
    if inside is None or bool(inside.all()):
        return
    where = tuple(int(i) for i in (~inside).nonzero()[0])
    raise DomainError(
        f"rounding to {problem.dtype} puts the dual point of {int((~inside).sum())} of {inside.numel()} queries "
        "(first at "
        f"index {where}) on the border of the domain of log M, where there is no gradient: give the problem in "
        "float64, or "
        "make alpha or the evidence smaller",
        query=where,
    )
