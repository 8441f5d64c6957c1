"""The second-order estimator: one Newton step from no evidence."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.blocks import DEFAULT_MEMORY_BUDGET, QueryBlock, QueryLayout
from fenchel.certificate import certify
from fenchel.closeness import KL
from fenchel.estimate import Estimate, EstimateBuilder, whole_estimate
from fenchel.problem import InferenceProblem
from fenchel.solver.coordinates import centred
from fenchel.solver.direct import solve_shifted, span
from fenchel.solver.dual_newton import second_order_point
from fenchel.solver.options import check_call

__all__ = ["second_order"]

WORKING_ARRAYS = 12


def second_order(problem: InferenceProblem, *, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> Estimate:
    r"""Take the maximiser of the dual with log M replaced by its second-order expansion (12).

    .. math:: \lambda = \alpha(I + \alpha\Sigma)^{-1} z

    Exact whenever u is Gaussian. Σ is factorised once where queries share preference and α, else once a query,
    in the span of the templates, in float64.

    Args:
        problem: What to estimate. Under another closeness than :class:`~fenchel.KL`, Σ is the curvature of D* at 0:
            :math:`\tfrac1\gamma\sum_i u_i\Sigma_i` for optimal transport.
        memory_budget: Bytes of working memory (KL).

    Returns:
        The estimate with its bounds.

    Reference:
        Eq. (13); Appendix D.

    Example:
        >>> from fenchel import Discrete
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))       # Σ = 1
        >>> second_order(InferenceProblem(u, torch.tensor([[1.0]], dtype=torch.float64))).dual
        tensor([[0.5000]], dtype=torch.float64)
    """
    check_call(problem, memory_budget)
    if not isinstance(problem.closeness, KL):
        with torch.no_grad():
            dual = second_order_point(problem.to(torch.float64))
        return whole_estimate(problem, dual, tol=64 * torch.finfo(problem.dtype).eps)
    layout = QueryLayout(problem)
    builder = EstimateBuilder(layout, tol=64 * torch.finfo(problem.dtype).eps)
    with torch.no_grad():
        for groups, rows, block in layout.blocks(memory_budget, WORKING_ARRAYS, itemsize=8):
            wide = block.to(torch.float64)
            dual = _second_order_dual(wide, memory_budget)
            builder.put(groups[:, None], rows[None, :], certify(wide, dual, problem.closeness, problem.dtype))
    return builder.build()


def _second_order_dual(block: QueryBlock, memory_budget: int) -> Tensor:
    factors, basis = span(centred(block.templates, block.log_preference))
    n, k = factors.shape[-2:]
    evidence = block.evidence @ basis
    g = len(evidence)
    shared = max(block.log_preference.shape[1], block.alpha.shape[1])
    preference = block.log_preference.exp().expand(g, shared, n)
    alpha = block.alpha.expand(g, shared, 1)
    chunk = max(1, memory_budget // (8 * g * k * (3 * k + 2 * n)))
    solved = []
    for start in range(0, shared, chunk):
        part = slice(start, start + chunk)
        right = evidence.mT.unsqueeze(1) if shared == 1 else evidence[:, part].unsqueeze(-1)
        solved.append(solve_shifted(factors, preference[:, part], alpha[:, part], right))
    within = solved[0].squeeze(1).mT if shared == 1 else torch.cat(solved, 1).squeeze(-1)
    # Evidence outside the span of the centred templates meets no covariance: there λ = αz.
    return block.alpha * (block.evidence + (within - evidence) @ basis.mT)
