"""What every solver is called with, checked once."""

from __future__ import annotations

from typing import Any

from fenchel.errors import ProblemError
from fenchel.problem import Problem
from fenchel.tensors import check_flags, checked_argument

__all__ = ["check_call", "check_curved", "check_iterations"]


def check_call(problem: Any, memory_budget: Any) -> None:
    """The problem and the options of a solver.

    Args:
        problem: What to solve.
        memory_budget: Bytes of working memory.

    Raises:
        ProblemError: Naming the first that cannot be used.
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem is a {type(problem).__name__}; expected a fenchel.InferenceProblem")
    checked_argument("memory_budget", memory_budget)


def check_curved(problem: Problem, estimator: str) -> None:
    """Refuse a closeness whose weights jump, where steps or an expansion are made of their derivative.

    Raises:
        ProblemError: Naming the estimator.
    """
    if not problem.closeness.curved:
        raise ProblemError(
            f"closeness is {problem.closeness!r}, whose weights jump, so that there is no {estimator!r} estimate; "
            "expected the estimator 'first_order', or a closeness with a small temperature, such as "
            "fenchel.Tsallis(2, temperature=0.01)"
        )


def check_iterations(tol: Any, max_steps: Any, throw: Any) -> None:
    """When an iterative solver stops, and whether it raises then.

    Args:
        tol: Relative tolerance.
        max_steps: Steps that a query may take.
        throw: Whether to raise where the tolerance is not met.

    Raises:
        ProblemError: Naming the first that cannot be used.
    """
    checked_argument("tol", tol)
    checked_argument("solver_steps", max_steps, name="max_steps")
    check_flags(throw=throw)
