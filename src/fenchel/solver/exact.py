r"""The exact estimator: the maximiser λ* of the dual, by Newton's method in the cheaper coordinates.

Why it converges, what the certificate guarantees and what it costs: ``docs/exact-solver.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from fenchel.arguments.tensor import checked_argument
from fenchel.blocks import DEFAULT_MEMORY_BUDGET, QueryBlock, QueryLayout
from fenchel.certificate import Certificate, certify
from fenchel.closeness import KL
from fenchel.errors import ConvergenceError
from fenchel.estimate import (
    Estimate,
    EstimateBuilder,
    certify_whole,
    refuse_gradients,
    whole_estimate,
)
from fenchel.problem import InferenceProblem
from fenchel.selection import rows_where, select, store
from fenchel.solver.coordinates import (
    AbstractCoordinates,
    GramCoordinates,
    TemplateCoordinates,
    centred,
    multiplies_fast_in_bfloat16,
)
from fenchel.solver.direct import by_factorisation, span
from fenchel.solver.dual_newton import maximise_dual
from fenchel.solver.loop import iterate
from fenchel.solver.newton import DirectionFinder, Newton, by_conjugate_gradients
from fenchel.solver.options import check_call, check_iterations
from fenchel.solver.rows import Rows

__all__ = ["RowSolution", "check_convergence", "coordinates_for", "exact", "low_precision_for", "solve_rows"]

WORKING_ARRAYS = 24
"""Arrays of shape (rows, max(n, d)) alive at once in a Newton step, counted in the block's own dtype."""

MARGIN = 0.7
"""Newton aims at this fraction of the tolerance: its residual is carried along, the certificate is computed afresh."""

MARGIN_IN_FLOAT64 = 0.02
"""The same for the first stage of float64 problems, where the last digits cost a step at most."""

PATIENCE = 6
"""Newton steps with conjugate gradients before the next, sturdier stage takes over; ordinary problems take 2 to 5."""

NEAR = 1e-2
"""Relative certificate below which conjugate gradients in float64 polish; the rest goes to factorisation at once."""

FACTORISE_UP_TO = 1024
"""Largest Hessian (rows and columns) that is factorised query by query."""

LOW_PRECISION_FROM = 256
"""Smallest operator for which a product in bfloat16 repays the extra product in full precision."""


def exact(
    problem: InferenceProblem,
    *,
    tol: float = 1e-6,
    max_steps: int = 50,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    coordinates: str = "auto",
) -> Estimate:
    r"""Maximise the dual (7) to a certified relative accuracy.

    .. math:: \lambda^\star = \arg\max_\lambda \mathcal{D}(\lambda), \qquad
              \lVert\lambda - \lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert
              \le \mathtt{tol}\cdot\lVert\lambda\rVert

    Newton's method with conjugate gradients runs in the problem's dtype; queries whose fresh float64
    certificate does not meet the tolerance are refined in float64, at last by factorisation.

    Args:
        problem: What to solve. A closeness other than :class:`~fenchel.KL` is solved through its primitives alone
            (:mod:`fenchel.solver.dual_newton`), all queries at once.
        tol: Relative tolerance on λ, > 0. Where λ is zero to rounding, it is relative to ‖αz‖.
        max_steps: Newton steps a query may take.
        throw: Raise where the tolerance is not met; otherwise see ``estimate.converged``.
        memory_budget: Bytes of working memory besides input and result; queries are solved in blocks that fit.
        coordinates: ``"gram"`` (products with the n × n Gram matrix), ``"template"`` (two products with the n × d
            templates), or ``"auto"``: the cheaper.

    Returns:
        The estimate, whose bounds come from the problem and λ alone.

    Raises:
        ProblemError: On a tolerance, step limit, coordinates or closeness that cannot be used.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Theorem 1, eqs. (7)–(10); Appendix D, eqs. (35) and (36).

    Example:
        >>> from fenchel import Discrete
        >>> u = Discrete(torch.eye(3, dtype=torch.float64))
        >>> estimate = exact(InferenceProblem(u, torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)), tol=1e-10)
        >>> bool(estimate.dual_error <= 1e-10 * estimate.dual.norm())
        True
    """
    check_call(problem, memory_budget)
    check_iterations(tol, max_steps, throw)
    checked_argument("coordinates", coordinates)
    if not isinstance(problem.closeness, KL):
        refuse_gradients(problem)
        return _exact_whole(problem, tol, max_steps, throw)
    layout = QueryLayout(problem)
    builder = EstimateBuilder(layout, tol)
    itemsize = torch.finfo(problem.dtype).bits // 8
    # Certificates are in float64 whatever the problem's dtype, so a block is sized for the larger of the two.
    arrays = max(WORKING_ARRAYS, WORKING_ARRAYS // 2 * 8 // itemsize)
    with torch.no_grad():
        for groups, rows, block in layout.blocks(memory_budget, arrays, itemsize):
            solver = _BlockSolver(block, problem.dtype, tol, max_steps, coordinates, memory_budget)
            builder.put(groups[:, None], rows[None, :], solver.certificate, solver.steps)
            builder.operator_products += solver.operator_products
    estimate = builder.build()
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


def _exact_whole(problem: InferenceProblem, tol: float, max_steps: int, throw: bool) -> Estimate:
    """Any closeness: in the problem's dtype, then in float64 if the certificate does not meet the tolerance."""
    with torch.no_grad():
        start = (problem.alpha_column * problem.evidence).expand(*problem.shape, -1)
        margin = MARGIN if problem.dtype == torch.float32 else MARGIN_IN_FLOAT64
        # Below this the gradient is rounding, and steps in the problem's dtype would be wasted on it.
        reachable = max(margin * tol, 64 * torch.finfo(problem.dtype).eps)
        dual, steps = maximise_dual(problem, start, tol=reachable, max_steps=max_steps)
        left = max_steps - int(steps.max())
        if (
            problem.dtype == torch.float32
            and left
            and not bool(certify_whole(problem, dual).meets(tol).all())
        ):
            dual, more = maximise_dual(
                problem.to(torch.float64), dual.double(), tol=margin * tol, max_steps=left
            )
            steps = steps + more
        estimate = whole_estimate(problem, dual, tol=tol, steps=steps)
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


def low_precision_for(coordinates: AbstractCoordinates) -> AbstractCoordinates | None:
    """Coordinates for directions in bfloat16, where that is faster than the float32 ones given."""
    operator = coordinates.operator
    wide = operator.shape[-2] >= LOW_PRECISION_FROM
    if operator.dtype == torch.float32 and wide and multiplies_fast_in_bfloat16(operator.device):
        return coordinates.low_precision()
    return None


def check_convergence(estimate: Estimate, tol: float, max_steps: int) -> None:
    """Raise if some query does not meet the tolerance, naming how many, the worst and what to do."""
    missed = ~estimate.converged
    if not bool(missed.any()):
        return
    relative = estimate.dual_error.double() / estimate.dual.double().norm(dim=-1)
    relative = relative.nan_to_num(nan=torch.inf).masked_fill(~missed, -torch.inf)
    flat = int(relative.argmax())
    worst = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), relative.shape))
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


@dataclass(frozen=True)
class RowSolution:
    """Dual points of a block of rows, in its dtype.

    Attributes:
        dual: λ, (g, r, d).
        error: Certified relative error α‖∇𝒟(λ)‖/‖λ‖, (g, r).
        steps: Newton steps that each row took, int64 (g, r).
    """

    dual: Tensor
    error: Tensor
    steps: Tensor


def solve_rows(
    block: QueryBlock, *, tol: float, max_steps: int, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> RowSolution:
    """Solve a block of rows without making an estimate of it: for layers, which want λ* and nothing else.

    Certificates are computed in the block's dtype where rounding leaves them meaning something at ``tol``; rows that
    do not meet it there, and all rows at a smaller ``tol``, go the way of :func:`exact`. Template coordinates, in which
    λ has no cancellation that a certificate in the same dtype would not see.

    Args:
        block: The rows.
        tol: Relative tolerance on λ.
        max_steps: Newton steps that a row may take.
        memory_budget: Bytes of working memory for rows that are factorised.

    Returns:
        What was reached; rows whose error exceeds ``tol`` did not converge.
    """
    dtype = block.evidence.dtype
    basis = TemplateCoordinates(centred(block.templates, block.log_preference))
    rows = Rows.of(block, block.evidence)
    method = Newton(basis, tol=MARGIN * tol, low_precision=low_precision_for(basis))
    outcome = iterate(method.step, method.start(rows), tol=MARGIN * tol, max_steps=min(PATIENCE, max_steps))
    found = RowSolution(block.alpha * outcome.state.x, outcome.state.error, outcome.steps)
    meaningful = tol >= 64 * torch.finfo(dtype).eps
    failing = ~(found.error <= tol) if meaningful else torch.ones_like(found.error, dtype=torch.bool)
    if bool(failing.any()):
        index = rows_where(failing)
        again = _BlockSolver(select(block, index), dtype, tol, max_steps, "auto", memory_budget)
        error = (again.certificate.dual_error / again.certificate.reference).to(dtype)
        steps = outcome.steps.gather(1, index) + again.steps
        store(found, RowSolution(again.certificate.dual, error, steps), index)
    return found


class _BlockSolver:
    """Solves one block: in the problem's dtype, then in float64 where needed, at last by factorisation.

    Attributes:
        certificate: What is certified so far of every row.
        steps: Newton steps that each row took.
        operator_products: Products of one row with the operator.
    """

    certificate: Certificate
    steps: Tensor

    def __init__(
        self,
        block: QueryBlock,
        dtype: torch.dtype,
        tol: float,
        max_steps: int,
        coordinates: str,
        memory_budget: int,
    ) -> None:
        self.operator_products = 0
        self._dtype, self._tol, self._max_steps, self._budget = dtype, tol, max_steps, memory_budget
        self._wide = block.to(torch.float64)
        self._solve(block, coordinates)
        self._polish()
        self._factorise()

    def _solve(self, block: QueryBlock, coordinates: str) -> None:
        """Newton in the problem's dtype from the first-order point."""
        templates = centred(block.templates, block.log_preference)
        basis = coordinates_for(templates, coordinates)
        gram = isinstance(basis, GramCoordinates)
        rows = Rows.of(block, block.evidence @ templates.mT if gram else block.evidence)
        margin = MARGIN if self._dtype == torch.float32 else MARGIN_IN_FLOAT64
        method = Newton(basis, tol=margin * self._tol, low_precision=low_precision_for(basis))
        outcome = iterate(
            method.step, method.start(rows), tol=margin * self._tol, max_steps=min(PATIENCE, self._max_steps)
        )
        self.operator_products += method.operator_products
        self.steps = outcome.steps
        x, wide = outcome.state.x.double(), self._wide
        if gram:
            x = wide.evidence + x @ centred(wide.templates, wide.log_preference)
        self._dual = wide.alpha * x
        self.certificate = certify(wide, self._dual, KL(), self._dtype)

    def _polish(self) -> None:
        """Conjugate gradients in float64: for rows that are near, or for Hessians too large to factorise."""
        relative = self.certificate.dual_error / self.certificate.reference
        near = (
            relative < NEAR
            if self._span_size <= FACTORISE_UP_TO
            else torch.ones_like(relative, dtype=torch.bool)
        )
        failing = self._failing() & near
        if bool(failing.any()):
            limit = PATIENCE if self._span_size <= FACTORISE_UP_TO else self._max_steps
            self._refine(rows_where(failing), by_conjugate_gradients, limit)

    def _factorise(self) -> None:
        """Factorised Hessians in float64, for whatever is left."""
        failing = self._failing()
        if self._span_size > FACTORISE_UP_TO or not bool(failing.any()):
            return
        groups, n, _ = self._wide.templates.shape
        each = 8 * groups * self._span_size * (3 * self._span_size + 2 * n)
        for part in rows_where(failing).split(max(1, self._budget // each), dim=1):
            self._refine(part, by_factorisation, self._max_steps)

    def _failing(self) -> Tensor:
        return ~self.certificate.meets(self._tol) & (self.steps < self._max_steps)

    @property
    def _span_size(self) -> int:
        return min(self._wide.templates.shape[-2:])

    @cached_property
    def _span(self) -> tuple[Tensor, Tensor]:
        return span(centred(self._wide.templates, self._wide.log_preference))

    def _refine(self, index: Tensor, direction: DirectionFinder, max_steps: int) -> None:
        """Newton in float64, over the span of the templates, on the rows at ``index`` (g, r')."""
        left = self._max_steps - int(self.steps.gather(1, index).max())
        factors, basis = self._span
        block = select(self._wide, index)
        along = index.unsqueeze(-1).expand(*index.shape, self._dual.shape[-1])
        within = block.evidence @ basis
        rows = Rows.of(block, within)
        x = (self._dual.gather(1, along) / block.alpha) @ basis
        method = Newton(
            TemplateCoordinates(factors), tol=MARGIN * self._tol, direction=direction, refresh=True
        )
        if direction is by_factorisation:
            # Where α‖t‖² is huge the first-order point is so far out that p is a vertex and the Hessian says
            # nothing; the dual at 0 is 0, and a point below that is a worse start than none.
            x = torch.where(_dual_value(block, factors, rows, x) > 0, x, torch.zeros_like(x))
        outcome = iterate(
            method.step, method.start(rows, x), tol=MARGIN * self._tol, max_steps=min(left, max_steps)
        )
        self.operator_products += method.operator_products
        outside = block.evidence - within @ basis.mT
        # Once more, since what rounding leaves inside the span is multiplied by templates that may be huge.
        outside = outside - outside @ basis @ basis.mT
        dual = block.alpha * (outcome.state.x @ basis.mT + outside)
        self.steps.scatter_add_(1, index, outcome.steps)
        before, after = select(self.certificate, index), certify(block, dual, KL(), self._dtype)
        better = after.dual_error < before.dual_error
        store(self.certificate, _chosen(better, after, before), index)
        dual = torch.where(better.unsqueeze(-1), dual, self._dual.gather(1, along))
        self._dual.scatter_(1, along, dual)


def _chosen(first: Tensor, one: Certificate, other: Certificate) -> Certificate:
    """Each row's certificate: the one where ``first`` (g, r) says so, else the other."""
    chosen: dict[str, Tensor] = {}
    for part in fields(Certificate):
        a, b = getattr(one, part.name), getattr(other, part.name)
        chosen[part.name] = torch.where(first if a.dim() == 2 else first.unsqueeze(-1), a, b)
    return Certificate(**chosen)


def _dual_value(block: QueryBlock, factors: Tensor, rows: Rows, x: Tensor) -> Tensor:
    """The dual at λ = αx, up to what the evidence outside the span adds, (g, r, 1)."""
    lam = block.alpha * x
    target = rows.preference @ factors + rows.evidence
    cumulant = torch.logsumexp(block.log_preference + lam @ factors.mT, -1, keepdim=True)
    return (lam * target).sum(-1, keepdim=True) - (lam * x).sum(-1, keepdim=True) / 2 - cumulant


def coordinates_for(templates: Tensor, name: str = "auto") -> AbstractCoordinates:
    """Gram or template coordinates over centred templates (g, n, d): by name, or whichever multiplies less."""
    n, d = templates.shape[-2:]
    if name == "gram" or (name == "auto" and n <= 2 * d):
        return GramCoordinates(templates @ templates.mT)
    return TemplateCoordinates(templates)
