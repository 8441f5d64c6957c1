r"""Dual points at which log M is infinite: closed forms may lead there, and then there is no answer to give.

:math:`\log M` of a preference with exponential tails is finite on part of the space only. The maximiser of the dual
is inside, since the dual falls to minus infinity at the border; :math:`\lambda = \alpha z` need not be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fenchel.errors import DomainError
from fenchel.problem import Problem

__all__ = ["check_domain"]

_HALVINGS = 60


def check_domain(
    problem: Problem, dual: Tensor, name: str, closed_form: Callable[[Problem], Tensor], first: int = 0
) -> None:
    r"""Refuse dual points of a closed form that are outside of the domain of log M.

    Args:
        problem: Whose.
        dual: λ, (..., m, d).
        name: Of the estimator, for the message.
        closed_form: The dual points of any problem, by which the largest admissible α is found. The points of all
            smaller α have to be inside.
        first: Number of the problem's first query, for the message.

    Raises:
        DomainError: Naming how many queries, the one that is farthest outside, and the largest α that it admits.
    """
    conjugate = problem.conjugate
    inside = conjugate.inside(dual)
    if inside is None or bool(inside.all()):
        return
    outside = (~inside).expand(problem.shape)
    reach = conjugate.reach(torch.zeros_like(dual), dual)
    reach = (inside.to(dual.dtype) if reach is None else reach).expand(problem.shape)
    flat = int(reach.nan_to_num(nan=0.0).masked_fill(~outside, torch.inf).argmin())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), problem.shape))
    alpha = float(problem.alpha.expand(problem.shape)[where])
    largest = _largest_alpha(problem, where, alpha, closed_form)
    where = (*where[:-1], where[-1] + first)
    raise DomainError(
        f"{name} puts the dual point of {int(outside.sum())} of {outside.numel()} queries where log M of the "
        f"{type(problem.preference).__name__} preference is infinite or overflows (farthest at index {where}, where "
        "alpha is "
        f"{alpha:.6g} and the largest admissible alpha {largest:.6g}): make alpha or the evidence smaller there, or "
        "use the estimator 'exact', which stays inside",
        query=where,
        largest_alpha=largest,
    )


def _largest_alpha(
    problem: Problem, where: tuple[int, ...], alpha: float, closed_form: Callable[[Problem], Tensor]
) -> float:
    """The largest α that a query admits, to six digits and rounded down, so that it is admissible itself."""
    row = problem.queries(slice(where[-1], where[-1] + 1))
    at = (*where[:-1], 0)

    def admits(tried: float) -> bool:
        trial = row.with_alpha(torch.full(tuple(row.shape), tried, dtype=torch.float64))
        inside = trial.conjugate.inside(closed_form(trial))
        return inside is None or bool(inside.expand(trial.shape)[at])

    low, high = -700.0, math.log(alpha)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if admits(math.exp(middle)) else (low, middle)
    found = math.exp(low)
    unit = 10.0 ** (math.floor(math.log10(found)) - 5)
    return float(f"{(math.ceil(found / unit * (1 - 1e-9)) - 1) * unit:.6g}")
