r"""The estimators that iterate to the maximiser λ* of the dual, certified in float64.

Why the exact one converges, what its certificate guarantees and what it costs: ``docs/exact-solver.md``. Gradient
ascent is the papers' own way, kept as the baseline to measure against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments.tensor import check_flags, checked_argument
from fenchel.certificate import Certificate, certify, reference_norm
from fenchel.errors import ConvergenceError, ProblemError
from fenchel.estimate import Estimate, EstimateBuilder
from fenchel.family import Block
from fenchel.layout import DEFAULT_MEMORY_BUDGET, QueryLayout
from fenchel.problem import Problem
from fenchel.rounding import norm
from fenchel.solver.driver import infer

__all__ = [
    "WORKING_ARRAYS",
    "blocks_of",
    "check_call",
    "check_convergence",
    "check_curved",
    "check_iterations",
    "exact",
    "gradient_ascent",
    "solved_block",
]


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


WORKING_ARRAYS = 24
"""Arrays of shape (rows, max(n, d)) alive at once in a Newton step, counted in the block's own dtype."""

MARGIN = 0.7
"""The driver aims at this part of the tolerance: its certificate and that of an estimate are two evaluations."""


def exact(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_steps: int = 50,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    r"""Maximise the dual (7) to a certified relative accuracy.

    .. math:: \lambda^\star = \arg\max_\lambda \mathcal{D}(\lambda), \qquad
              \lVert\lambda - \lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert
              \le \mathtt{tol}\cdot\lVert\lambda\rVert

    Mixing and Newton's method run in the problem's dtype; queries for which rounding leaves too little of the tolerance
    are solved on in float64, and all are certified there.

    Args:
        problem: What to solve.
        tol: Relative tolerance on λ, > 0. Where λ is zero to rounding, it is relative to ‖αz‖.
        max_steps: Steps a query may take.
        throw: Raise where the tolerance is not met; otherwise see ``estimate.converged``.
        memory_budget: Bytes of working memory besides input and result; queries are solved in blocks that fit.

    Returns:
        The estimate, whose bounds come from the problem and λ alone.

    Raises:
        ProblemError: On a tolerance, step limit or closeness that cannot be used.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Theorem 1, eqs. (7)–(10); Appendix D, eqs. (35) and (36).

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64))
        >>> estimate = exact(InferenceProblem(u, torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)), tol=1e-10)
        >>> bool(estimate.dual_error <= 1e-10 * estimate.dual.norm())
        True
    """
    check_call(problem, memory_budget)
    check_curved(problem, "exact")
    return _iterated(problem, tol, max_steps, throw, memory_budget, solved_block)


def _iterated(
    problem: Problem,
    tol: float,
    max_steps: int,
    throw: bool,
    memory_budget: int,
    solve: Callable[[Block, torch.dtype, float, int], tuple[Certificate, Tensor]],
) -> Estimate:
    """The estimate of what ``solve`` finds for every block."""
    check_iterations(tol, max_steps, throw)
    builder = EstimateBuilder(problem, tol)
    with torch.no_grad():
        for where, block in blocks_of(builder.layout, memory_budget):
            builder.put(*where, *solve(block, problem.dtype, tol, max_steps))
    estimate = builder.build()
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


def blocks_of(
    layout: QueryLayout, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> Iterator[tuple[tuple[Tensor, Tensor], Block]]:
    """The blocks of a problem that a solver works on at once, each with where its rows are."""
    itemsize = torch.finfo(layout.problem.dtype).bits // 8
    # Certificates are in float64 whatever the problem's dtype, so a block is sized for the larger of the two.
    arrays = max(WORKING_ARRAYS, WORKING_ARRAYS // 2 * 8 // itemsize)
    for groups, rows, block in layout.blocks(memory_budget, arrays, itemsize):
        yield (groups[:, None], rows[None, :]), block


def solved_block(block: Block, dtype: torch.dtype, tol: float, max_steps: int) -> tuple[Certificate, Tensor]:
    """The dual points of a block, certified in float64, and the steps that each row took, int64 (g, r).

    Args:
        block: The rows, in the problem's dtype.
        dtype: To which results are rounded.
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take.
    """
    found = infer(block, tol=MARGIN * tol, max_steps=max_steps)
    return certify(block.to(torch.float64), found.dual.double(), dtype), found.steps


def check_convergence(estimate: Estimate, tol: float, max_steps: int) -> None:
    """Raise if some query does not meet the tolerance, naming how many, the worst and what to do."""
    missed = ~estimate.converged
    if not bool(missed.any()):
        return
    relative = estimate.dual_error.double() / norm(estimate.dual.double()).squeeze(-1)
    relative = relative.nan_to_num(nan=torch.inf).masked_fill(~missed, -torch.inf)
    flat = int(relative.argmax())
    worst = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat, device="cpu"), relative.shape))
    steps = int(estimate.steps.flatten()[flat])
    if steps >= max_steps:
        remedy = "raise max_steps, or tol where more steps change nothing (rounding is then the limit)"
    elif estimate.dual.dtype == torch.float32:
        remedy = "raise tol, or give the problem in float64"
    else:
        remedy = "raise tol: float64 cannot certify more on this problem"
    raise ConvergenceError(
        f"{int(missed.sum())} of {missed.numel()} queries did not reach dual_error <= {tol:g} ||dual|| (worst at index "
        f"{worst}: {float(relative.flatten()[flat]):.2e} after {steps} steps). To go on, {remedy}; or pass throw=False "
        "and read estimate.converged"
    )


def gradient_ascent(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_steps: int = 10_000,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    r"""Climb the dual from αz along its gradient, with a step that doubles on success and halves on failure.

    .. math:: \lambda \leftarrow \lambda + \eta\,\nabla\mathcal{D}(\lambda)

    A step is kept where the gradient gets shorter. The first and smallest η is one over a bound on the Hessian, with
    which it always does: :math:`1 / (\alpha^{-1} + \max_i\lVert t_i - \bar t\rVert^2/\sigma)` where there are
    templates. A preference that has no such bound begins with η = α, and no step is smallest.

    Args:
        problem: What to solve.
        tol: Relative tolerance on λ, certified as in :func:`~fenchel.solver.exact`.
        max_steps: Steps a query may take.
        throw: Raise where the tolerance is not met.
        memory_budget: Bytes of working memory.

    Returns:
        The estimate with its bounds.

    Raises:
        ProblemError: If the tolerance is not positive.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Section 8: "performing gradient ascent".

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(2, dtype=torch.float64))
        >>> slow = gradient_ascent(InferenceProblem(u, torch.tensor([[1.0, 0.0]], dtype=torch.float64)))
        >>> bool(slow.converged.all())
        True
    """
    check_call(problem, memory_budget)
    check_curved(problem, "gradient_ascent")
    return _iterated(problem, tol, max_steps, throw, memory_budget, _ascended)


def _ascended(block: Block, dtype: torch.dtype, tol: float, max_steps: int) -> tuple[Certificate, Tensor]:
    """What :func:`solved_block` gives, by gradient ascent."""
    family, alpha = block.family, block.alpha.expand(*block.evidence.shape[:2], 1)
    bound, first = block.family.smoothness(), alpha * block.evidence
    least = torch.zeros_like(alpha) if bound is None else (1 / (1 / alpha + bound)).expand_as(alpha)
    step = alpha if bound is None else least
    dual = family.start(first)
    steps = torch.zeros(alpha.shape[:2], dtype=torch.int64, device=alpha.device)

    def slope(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient = block.evidence - at / alpha - family.at(at).shift
        size = norm(gradient)
        reference = reference_norm(norm(at), norm(first))
        return gradient, size, alpha * size > MARGIN * tol * reference

    gradient, size, going = slope(dual)
    while bool(going.any()) and int(steps.max()) < max_steps:
        tried = dual + step * gradient
        new_gradient, new_size, new_going = slope(tried)
        kept = ((new_size < size) | (step <= least)) & going
        step = torch.where(kept, 2 * step, torch.where(going, torch.maximum(step / 2, least), step))
        steps += going.squeeze(-1)
        dual, gradient = torch.where(kept, tried, dual), torch.where(kept, new_gradient, gradient)
        size, going = torch.where(kept, new_size, size), torch.where(kept, new_going, going)
    return certify(block.to(torch.float64), dual.double(), dtype), steps
