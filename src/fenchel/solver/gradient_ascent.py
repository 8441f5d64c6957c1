"""Gradient ascent on the dual: the papers' own way to λ*, kept as the baseline to measure against."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.certificate import certify, reference_norm
from fenchel.estimate import Estimate, EstimateBuilder
from fenchel.family import Block, norm
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.problem import Problem
from fenchel.solver.exact import MARGIN, check_convergence
from fenchel.solver.options import check_call, check_curved, check_iterations

__all__ = ["gradient_ascent"]

WORKING_ARRAYS = 12


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
    check_iterations(tol, max_steps, throw)
    builder = EstimateBuilder(problem, tol)
    itemsize = torch.finfo(problem.dtype).bits // 8
    with torch.no_grad():
        for groups, rows, block in builder.layout.blocks(memory_budget, WORKING_ARRAYS, itemsize):
            dual, steps = _ascend(block, MARGIN * tol, max_steps)
            certificate = certify(block.to(torch.float64), dual.double(), problem.dtype)
            builder.put(groups[:, None], rows[None, :], certificate, steps)
    estimate = builder.build()
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


def _ascend(block: Block, tol: float, max_steps: int) -> tuple[Tensor, Tensor]:
    """Dual points of a block, (g, r, d), and the steps that each row took, int64 (g, r)."""
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
        return gradient, size, alpha * size > tol * reference

    gradient, size, going = slope(dual)
    while bool(going.any()) and int(steps.max()) < max_steps:
        tried = dual + step * gradient
        new_gradient, new_size, new_going = slope(tried)
        kept = ((new_size < size) | (step <= least)) & going
        step = torch.where(kept, 2 * step, torch.where(going, torch.maximum(step / 2, least), step))
        steps += going.squeeze(-1)
        dual, gradient = torch.where(kept, tried, dual), torch.where(kept, new_gradient, gradient)
        size, going = torch.where(kept, new_size, size), torch.where(kept, new_going, going)
    return dual, steps
