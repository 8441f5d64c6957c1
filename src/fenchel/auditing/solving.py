"""How the queries of a layer are solved: softmax attention in the audit's own way, any other closeness by the core."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from fenchel.auditing.close_solution import CloseSolution, close_solutions
from fenchel.auditing.layer import LayerProblem
from fenchel.auditing.solution import BlockSolution, exact_solutions
from fenchel.closeness import AbstractCloseness

__all__ = ["solutions_of"]


def solutions_of(
    problem: LayerProblem,
    counted: Tensor,
    *,
    closeness: AbstractCloseness | None,
    alpha: float,
    tol: float,
    max_steps: int,
    memory_budget: int,
) -> Iterator[BlockSolution] | Iterator[CloseSolution]:
    """Attention's answer and the exact one of every query, block by block.

    Args:
        problem: The layer.
        counted: Queries that are wanted, bool (groups, heads, m).
        closeness: D; None is softmax.
        alpha: α > 0.
        tol: Relative tolerance on λ that the float64 certificate has to meet.
        max_steps: Steps that a query may take.
        memory_budget: Bytes of working memory.
    """
    if closeness is None:
        return exact_solutions(
            problem, counted, alpha=alpha, tol=tol, max_steps=max_steps, memory_budget=memory_budget
        )
    return close_solutions(
        problem,
        counted,
        closeness=closeness,
        alpha=alpha,
        tol=tol,
        max_steps=max_steps,
        memory_budget=memory_budget,
    )
