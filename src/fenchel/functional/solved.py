"""Dual points of problems of the core, found by the one certified solver, for ops on tensors: no weights are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.blocks import QueryBlock
from fenchel.errors import ConvergenceError
from fenchel.functional.exact import DEFAULT_TOL
from fenchel.functional.untraced import untraced
from fenchel.layout import DEFAULT_MEMORY_BUDGET, layout_of
from fenchel.problem import Problem
from fenchel.solver.closed_form import second_order_point
from fenchel.solver.exact import WORKING_ARRAYS, solved_block
from fenchel.solver.implicit import AbstractEquation, Expansion, StationaryPoint, implicit_dual_point
from fenchel.solver.options import check_evidence

__all__ = ["equation_of", "solution_of", "solved_dual_point"]


def equation_of(estimator: str) -> AbstractEquation:
    """What dual points of ``"second_order"`` or ``"exact"`` solve."""
    return StationaryPoint() if estimator == "exact" else Expansion()


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
    dual = solution_of(problem, estimator, tol, max_steps, remedy)
    return implicit_dual_point(problem, equation_of(estimator), dual) if torch.is_grad_enabled() else dual


# An iteration that looks at values is nothing to trace.
@untraced
@torch.no_grad()
def solution_of(problem: Problem, estimator: str, tol: float | None, max_steps: int, remedy: str) -> Tensor:
    """The same without gradient."""
    tol = DEFAULT_TOL[problem.dtype] if tol is None else tol
    if estimator == "exact":
        check_evidence(problem.evidence, problem.alpha_column, of_op=True)
    layout, itemsize = layout_of(problem), torch.finfo(problem.dtype).bits // 8
    dual, missed = layout.empty(problem.conjugate.dim), 0
    # Certificates are in float64 whatever the problem's dtype, so a block is sized for the larger of the two.
    arrays = max(WORKING_ARRAYS, WORKING_ARRAYS // 2 * 8 // itemsize)
    for groups, rows, block in layout.blocks(DEFAULT_MEMORY_BUDGET, arrays, itemsize):
        where = (groups[:, None], rows[None, :])
        if estimator == "exact":
            certificate, _ = solved_block(block, problem.dtype, tol=tol, max_steps=max_steps)
            dual[where] = certificate.dual
            missed += int((~certificate.meets(tol)).sum())
        else:
            block = block.to(torch.float64) if isinstance(block, QueryBlock) else block
            dual[where] = second_order_point(block).to(problem.dtype)
    if missed:
        raise ConvergenceError(
            f"{missed} of {problem.shape.numel()} queries did not reach dual_error <= {tol:g} ||dual|| within "
            f"{max_steps} steps. Raise tol or max_steps, give the tensors in float64, or make {remedy}"
        )
    return layout.restore(dual)
