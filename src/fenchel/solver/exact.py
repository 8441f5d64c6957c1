r"""The exact estimator: the maximiser λ* of the dual, certified in float64.

Why it converges, what the certificate guarantees and what it costs: ``docs/exact-solver.md``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.certificate import Certificate, certify
from fenchel.errors import ConvergenceError
from fenchel.estimate import Estimate, EstimateBuilder
from fenchel.family import Block
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.problem import Problem
from fenchel.rounding import norm
from fenchel.solver.driver import infer
from fenchel.solver.options import check_call, check_curved, check_iterations

__all__ = ["WORKING_ARRAYS", "check_convergence", "exact", "solved_block"]

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
    check_iterations(tol, max_steps, throw)
    builder = EstimateBuilder(problem, tol)
    itemsize = torch.finfo(problem.dtype).bits // 8
    # Certificates are in float64 whatever the problem's dtype, so a block is sized for the larger of the two.
    arrays = max(WORKING_ARRAYS, WORKING_ARRAYS // 2 * 8 // itemsize)
    with torch.no_grad():
        for groups, rows, block in builder.layout.blocks(memory_budget, arrays, itemsize):
            certificate, steps = solved_block(block, problem.dtype, tol=tol, max_steps=max_steps)
            builder.put(groups[:, None], rows[None, :], certificate, steps)
    estimate = builder.build()
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


def solved_block(
    block: Block, dtype: torch.dtype, *, tol: float, max_steps: int
) -> tuple[Certificate, Tensor]:
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
