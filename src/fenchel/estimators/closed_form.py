r"""The second-order dual point of rows, and the check that log M is finite at closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fenchel.cumulants import CumulantFamily
from fenchel.errors import DomainError, ProblemError
from fenchel.estimators.exact_solver import factorised, solved
from fenchel.family import Block, TemplateFamily
from fenchel.problem import Problem
from fenchel.tensors import index_of, norm

HALVINGS = 60


def second_order_point(block: Block, unsure: list[Tensor] | None = None) -> Tensor:
    r"""The maximiser of the dual's expansion at 0, (g, r, d), in the dtype of the block.

    .. math:: \lambda = \alpha(I + \alpha\nabla^2\varphi(0))^{-1} z

    If all rows of a group share preference and α, one Hessian per group is factorised; otherwise each row is solved by
    conjugate gradients, or by a factorisation if these do not converge. If a list ``unsure`` is given, no value is
    read, and whether some row did not converge is appended to the list.
    """
    family, alpha = block.family, block.alpha
    shared = unsure is None and family.selectable and alpha.shape[1] == 1
    if shared and isinstance(family, TemplateFamily) and family.log_preference.shape[1] == 1:
        curved = family.closeness.curvature_weights(family.rest_weights, family.log_preference)
        if curved.shape[1] == 1:
            return with_one_hessian(family.templates, curved, alpha, block.evidence)
    point = family.at(torch.zeros_like(block.evidence))
    if unsure is None and isinstance(family, CumulantFamily):
        # Of unit length, since products with large evidence may overflow.
        unit = block.evidence / norm(block.evidence).clamp(min=torch.finfo(block.evidence.dtype).tiny)
        if not bool(torch.isfinite(point.product(unit)).all()):
            raise ProblemError(
                f"tilted_covariance of {type(family.preference).__name__} is not finite at 0; expected the second "
                "derivative of log_mgf: write the method where autograd's is NaN"
            )
    return solved(point, block.evidence, alpha, unsure=unsure)


def with_one_hessian(
    templates: Tensor,
    curved: Tensor,
    alpha: float | Tensor,
    evidence: Tensor,
    solve: Callable[[Tensor, Tensor], Tensor] = factorised,
    within: Tensor | None = None,
) -> Tensor:
    r"""The second-order dual point if all rows share the curvature diag q - qqᵀ/Σq, (..., r, d).

    Args:
        templates: (..., n, d).
        curved: q, (..., 1, n).
        alpha: α, of all rows.
        evidence: z, (..., r, d).
        solve: Function of a symmetric positive A and rows that returns the rows times (I + A)⁻¹.
        within: A diagonal added to the curvature, (..., d).
    """
    centred = templates - curved @ templates / curved.sum(-1, keepdim=True)
    n, d = templates.shape[-2:]
    # Exported graphs, made for any number of templates, cannot choose the cheaper one.
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


def domain_error(problem: Problem, points: Callable[[Problem], Tensor], name: str) -> DomainError:
    r"""The error for dual points of a closed form outside the domain of log M.

    It has the number of such queries, the one farthest outside, and the largest α admissible for it.

    Args:
        problem: The problem.
        points: Function that returns the dual points of a problem, (..., m, d), in its dtype. If they are inside at
            some α, they have to be inside at all smaller α.
        name: Name of the estimator.
    """
    dual = points(problem)
    inside = problem.preference.inside(dual)
    assert inside is not None  # noqa: S101 -- some are outside
    reach = problem.preference.reach(torch.zeros_like(dual), dual)
    reach = (inside.to(dual.dtype) if reach is None else reach).nan_to_num(nan=0.0)
    outside = (~inside).expand(problem.shape)
    where = index_of(reach.masked_fill(inside, torch.inf).expand(problem.shape).argmin(), problem.shape)
    alpha = float(problem.alpha.expand(problem.shape)[where])
    largest = _largest_alpha(problem, where, alpha, points)
    return DomainError(
        f"{name} puts the dual point of {int(outside.sum())} of {outside.numel()} queries where log M of the "
        f"{type(problem.preference).__name__} preference is infinite or overflows (farthest at index {where}, where "
        f"alpha is {alpha:.6g} and the largest admissible alpha {largest:.6g}): make alpha or the evidence smaller "
        "there, or use the estimator 'exact', which stays inside",
        query=where,
        largest_alpha=largest,
    )


def _largest_alpha(
    problem: Problem, where: tuple[int, ...], alpha: float, points: Callable[[Problem], Tensor]
) -> float:
    """The largest admissible α of a query, to six digits, rounded down to be admissible itself."""
    row = problem.queries(slice(where[-1], where[-1] + 1))

    def is_admissible(tried: float) -> bool:
        trial = row._with_alpha(torch.full_like(row.alpha.expand(row.shape), tried))
        inside = trial.preference.inside(points(trial))
        return inside is None or bool(inside.expand(trial.shape)[(*where[:-1], 0)])

    low, high = -700.0, math.log(alpha)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_admissible(math.exp(middle)) else (low, middle)
    result = math.exp(low)
    unit = 10.0 ** (math.floor(math.log10(result)) - 5)
    return float(f"{(math.ceil(result / unit * (1 - 1e-9)) - 1) * unit:.6g}")
