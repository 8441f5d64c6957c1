"""What every solver is called with, checked once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.arguments.tensor import check_flags, checked_argument
from fenchel.certificate import LEAST
from fenchel.errors import ProblemError
from fenchel.problem import Problem

__all__ = ["check_call", "check_curved", "check_evidence", "check_iterations"]


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


def check_evidence(evidence: Tensor, alpha: Tensor, *, of_op: bool = False) -> None:
    """Refuse evidence that is not 0 and so small that squares of it, of which all norms are made, underflow.

    Args:
        evidence: z, (..., m, d).
        alpha: α, which broadcasts to (..., m, 1).
        of_op: Whether the evidence is the query of an op, in whose blocks indices are not those of the call.

    Raises:
        ProblemError: Naming how many queries, and the first.
    """
    # What float32 holds has squares that float64 holds.
    if evidence.dtype != torch.float64 or evidence.numel() == 0:
        return
    given = evidence.abs().amax(-1, keepdim=True)
    size = given * alpha.clamp(max=1)
    faint = (given > 0) & (size < LEAST)
    if not bool(faint.any()):
        return
    at = tuple(int(i) for i in faint.nonzero()[0])
    name, first = ("query", "") if of_op else ("evidence", f"first at index {at[:-1]}: ")
    raise ProblemError(
        f"{name} of {int(faint.sum())} of {faint.numel()} queries is so small that float64 does not hold its square "
        f"({first}the largest entry, times alpha where that is below 1, is {float(size[at]):.1e}); "
        f"expected 0, or at least {LEAST:.1e}: set it to 0, or multiply evidence and templates by a number and divide "
        "alpha by its square, which leaves the weights as they are"
    )
