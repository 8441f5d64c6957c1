r"""The closed forms at rows: second order, one Newton step from no evidence; and where log M is finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fenchel.errors import DomainError
from fenchel.estimators.exact_solver import solved
from fenchel.family import Block
from fenchel.problem import DEFAULT_MEMORY_BUDGET, Problem, QueryLayout
from fenchel.templates import TemplateFamily

HALVINGS = 60


def first_order_points(problem: Problem) -> Tensor:
    """The dual points αz of a problem, (..., m, d)."""
    return problem.alpha_column * problem.evidence


def second_order_points(problem: Problem, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> Tensor:
    """The dual points of a problem, (..., m, d)."""
    layout = QueryLayout(problem)
    return layout.solved(lambda block: {"dual": second_order_point(block)}, memory_budget=memory_budget)[
        "dual"
    ]


def second_order_point(block: Block, unsure: list[Tensor] | None = None) -> Tensor:
    r"""The maximiser of the dual's expansion at 0, (g, r, d), in the dtype of the block.

    .. math:: \lambda = \alpha(I + \alpha\nabla^2\varphi(0))^{-1} z

    Where all rows of a group share preference and α, one Hessian a group is factorised; else conjugate gradients solve
    for each row, and a factorisation where they do not get there. With a list ``unsure`` no value is looked at, and
    whether they do not is added to it.
    """
    family, alpha = block.family, block.alpha
    shared = unsure is None and family.selectable and alpha.shape[1] == 1
    if shared and isinstance(family, TemplateFamily) and family.log_preference.shape[1] == 1:
        rest = family.closeness.rest(family.log_preference)
        curved = family.closeness.curvature_weights(rest, family.log_preference)
        if curved.shape[1] == 1:
            return with_one_hessian(family.templates, curved, alpha, block.evidence)
    point = family.at(torch.zeros_like(block.evidence))
    return solved(point, block.evidence, alpha, unsure=unsure)


def _solved(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows (g, r, k) times (I + A)⁻¹ for A symmetric and positive, (g, k, k)."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, failed = torch.linalg.cholesky_ex(matrix + identity)
    if not bool(failed.any()):
        return torch.cholesky_solve(rows.mT, factor).mT
    # Where A is so large that rounding leaves I + A not positive definite.
    values, vectors = torch.linalg.eigh(matrix)
    return (rows @ vectors / (1 + values.clamp(min=0)).unsqueeze(-2)) @ vectors.mT


def with_one_hessian(
    templates: Tensor,
    curved: Tensor,
    alpha: float | Tensor,
    evidence: Tensor,
    solve: Callable[[Tensor, Tensor], Tensor] = _solved,
    within: Tensor | None = None,
) -> Tensor:
    r"""The same for one curvature :math:`\operatorname{diag} q - qq^\top/\sum q` of all rows, (..., r, d).

    Args:
        templates: (..., n, d).
        curved: q, (..., 1, n).
        alpha: α, of all rows.
        evidence: z, (..., r, d).
        solve: From a symmetric positive A and rows, these times (I + A)⁻¹.
        within: A diagonal that is added to the curvature, (..., d).
    """
    centred = templates - curved @ templates / curved.sum(-1, keepdim=True)
    n, d = templates.shape[-2:]
    # Which is cheaper is not asked where a graph is for any number of templates.
    if torch.compiler.is_exporting() or d <= n or within is not None:
        curvature = centred.mT @ (curved.mT * centred)
        if within is not None:
            curvature = curvature + torch.diag_embed(within)
        return alpha * solve(alpha * curvature, evidence)
    # Woodbury: (I + αRᵀR)⁻¹ = I - αRᵀ(I + αRRᵀ)⁻¹R, n × n instead of d × d.
    possible = curved.mT > 0
    root = centred * torch.where(possible, curved.mT, 1).sqrt() * possible
    within = solve(alpha * (root @ root.mT), evidence @ root.mT)
    return alpha * (evidence - alpha * (within @ root))


def check_domain(problem: Problem, dual: Tensor, name: str, closed_form: Callable[[Problem], Tensor]) -> None:
    r"""Refuse dual points of a closed form that are outside of the domain of log M.

    Args:
        problem: Whose.
        dual: λ, (..., m, d).
        name: Of the estimator, for the message.
        closed_form: The dual points of any problem, by which the largest admissible α is found. The points of all
            smaller α have to be inside.

    Raises:
        DomainError: Naming how many queries, the one that is farthest outside, and the largest α that it admits.
    """
    inside = problem.preference.inside(dual)
    if inside is None or bool(inside.all()):
        return
    outside = (~inside).expand(problem.shape)
    reach = problem.preference.reach(torch.zeros_like(dual), dual)
    reach = (inside.to(dual.dtype) if reach is None else reach).expand(problem.shape)
    flat = int(reach.nan_to_num(nan=0.0).masked_fill(~outside, torch.inf).argmin())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat, device="cpu"), problem.shape))
    alpha = float(problem.alpha.expand(problem.shape)[where])
    largest = _largest_alpha(problem, where, alpha, closed_form)
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
        trial = row._with_alpha(
            torch.full(tuple(row.shape), tried, dtype=torch.float64, device=row.alpha.device)
        )
        inside = trial.preference.inside(closed_form(trial))
        return inside is None or bool(inside.expand(trial.shape)[at])

    low, high = -700.0, math.log(alpha)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if admits(math.exp(middle)) else (low, middle)
    result = math.exp(low)
    unit = 10.0 ** (math.floor(math.log10(result)) - 5)
    return float(f"{(math.ceil(result / unit * (1 - 1e-9)) - 1) * unit:.6g}")
