"""The first-order estimator: attention."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.estimate import Estimate, estimate_at
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.problem import Problem
from fenchel.solver.domain import check_domain
from fenchel.solver.options import check_call

__all__ = ["first_order"]


def first_order(problem: Problem, *, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> Estimate:
    r"""Take λ = αz: dot-product attention where u is uniform.

    .. math:: \lambda = \alpha z, \qquad \hat h = \sum_i t_i \frac{u_i e^{\alpha\langle t_i, z\rangle}}
              {\sum_j u_j e^{\alpha\langle t_j, z\rangle}}

    Its gap is :math:`\frac\alpha2\lVert\hat h - \mu\rVert^2`: α times half the squared shift of the output (fact 1).

    Args:
        problem: What to estimate, with any closeness.
        memory_budget: Bytes of working memory for the bounds, which are evaluated in float64.

    Returns:
        The estimate with its bounds.

    Raises:
        DomainError: If αz is where log M is infinite, with the largest α for which it is not.

    Reference:
        Eqs. (14) and (16).

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> t, z = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> first_order(InferenceProblem(Discrete(t), z)).weights      # softmax of (1, 0)
        tensor([[0.7311, 0.2689]], dtype=torch.float64)
    """
    check_call(problem, memory_budget)
    with torch.no_grad():
        dual = first_order_point(problem)
        check_domain(problem, dual, "first_order", first_order_point)
    return estimate_at(problem, dual, memory_budget)


def first_order_point(problem: Problem) -> Tensor:
    """The dual points αz of a problem, (..., m, d)."""
    return problem.alpha_column * problem.evidence
