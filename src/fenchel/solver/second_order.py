"""The second-order estimator: one Newton step from no evidence."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.blocks import AbstractBlock, ConjugateBlock
from fenchel.certificate import certify
from fenchel.estimate import Estimate, EstimateBuilder
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.problem import Problem
from fenchel.solver.direct import Span, solve_shifted
from fenchel.solver.domain import check_domain
from fenchel.solver.linear import solve_hessian
from fenchel.solver.options import check_call, check_curved
from fenchel.solver.staged import FACTORISE_UP_TO

__all__ = ["second_order", "second_order_point"]

WORKING_ARRAYS = 12


def second_order(problem: Problem, *, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> Estimate:
    r"""Take the maximiser of the dual with log M replaced by its second-order expansion (12).

    .. math:: \lambda = \alpha(I + \alpha\Sigma)^{-1} z

    Exact whenever u is Gaussian. Σ is the covariance of u under :class:`~fenchel.KL`, and the curvature
    :math:`\nabla^2\varphi(0)` in general: :math:`\tfrac1\gamma\sum_i u_i\Sigma_i` for optimal transport. In float64.

    Args:
        problem: What to estimate.
        memory_budget: Bytes of working memory.

    Returns:
        The estimate with its bounds.

    Raises:
        DomainError: If a dual point is where log M is infinite, with the largest α for which it is not.

    Reference:
        Eq. (13); Appendix D.

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))       # Σ = 1
        >>> second_order(InferenceProblem(u, torch.tensor([[1.0]], dtype=torch.float64))).dual
        tensor([[0.5000]], dtype=torch.float64)
    """
    check_call(problem, memory_budget)
    check_curved(problem, "second_order")
    builder = EstimateBuilder(problem, tol=64 * torch.finfo(problem.dtype).eps)
    with torch.no_grad():
        for groups, rows, block in builder.layout.blocks(memory_budget, WORKING_ARRAYS, itemsize=8):
            wide = block.to(torch.float64)
            dual = second_order_point(wide)
            if isinstance(wide, ConjugateBlock):
                points = dual.reshape(*wide.problem.shape, -1)
                check_domain(wide.problem, points, "second_order", _points_of, int(rows[0]))
            builder.put(groups[:, None], rows[None, :], certify(wide, dual, problem.dtype))
    return builder.build()


def _points_of(problem: Problem) -> Tensor:
    return second_order_point(ConjugateBlock.of(problem)).reshape(*problem.shape, -1)


def second_order_point(block: AbstractBlock) -> Tensor:
    r"""The maximiser of the dual's expansion at 0, (g, r, d), in the dtype of the block.

    .. math:: \lambda = \alpha(I + \alpha\nabla^2\varphi(0))^{-1} z

    Where all rows of a group share preference and α, one Hessian a group is factorised; else conjugate gradients solve
    for each row.
    """
    span, response, alpha = Span.of(block), block.response, block.alpha
    evidence = span.within(block.evidence)
    rest = response.rest
    if rest.shape[1] == alpha.shape[1] == 1 and span.size <= FACTORISE_UP_TO:
        right = evidence.mT.unsqueeze(1)
        factors, nothing = span.coordinates.factors, torch.zeros_like(rest)
        solved = solve_shifted(response, nothing, rest, factors, alpha, right).squeeze(1).mT
    else:
        lifted = span.coordinates.lift(evidence)
        at_rest = response.argument(alpha, torch.zeros_like(lifted))
        solved = solve_hessian(
            span.coordinates, response, at_rest, rest.expand_as(lifted), alpha, evidence
        ).vectors
    if span.basis is None:
        return alpha * solved
    # Evidence outside the span of the centred templates meets no curvature: there λ = αz.
    return alpha * (block.evidence + span.vectors(solved - evidence))
