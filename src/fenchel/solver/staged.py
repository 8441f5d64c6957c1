r"""The one way to a certified dual point: working dtype, then float64, at last factorisation.

Every stage ends with a certificate that is computed anew in float64 from the block and λ alone; rows that meet the
tolerance leave, and what a solver carries along is never believed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fenchel.blocks import AbstractBlock, QueryBlock
from fenchel.certificate import Certificate, certify
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.selection import rows_where, select, store
from fenchel.solver.certified import CertifiedRows, CertifiedSolver
from fenchel.solver.coordinates import (
    AbstractCoordinates,
    GramCoordinates,
    coordinates_for,
    multiplies_fast_in_bfloat16,
)
from fenchel.solver.direct import Span, by_factorisation
from fenchel.solver.loop import iterate
from fenchel.solver.newton import DirectionFinder, Newton, by_conjugate_gradients
from fenchel.solver.passes import PassCoordinates, PassResponse
from fenchel.solver.rows import Rows
from fenchel.solver.working import WorkingStage

__all__ = [
    "GRAM_FROM",
    "WORKING_ARRAYS",
    "RowSolution",
    "StagedSolver",
    "low_precision_for",
    "refine_rows",
    "solve_rows",
]

WORKING_ARRAYS = 24
"""Arrays of shape (rows, max(n, d)) alive at once in a Newton step, counted in the block's own dtype."""

MARGIN = 0.7
"""Newton aims at this fraction of the tolerance: its residual is carried along, the certificate is computed afresh."""

PATIENCE = 6
"""Newton steps with conjugate gradients before the next, sturdier stage takes over; ordinary problems take 2 to 5."""

NEAR = 1e-2
"""Relative certificate below which conjugate gradients in float64 polish; the rest goes to factorisation at once."""

FACTORISE_UP_TO = 1024
"""Largest Hessian (rows and columns) that is factorised query by query."""

GRAM_FROM = 1e-6
"""Least tolerance that Gram coordinates of float32 certify: there a squared norm is rounded, not the norm."""

GRAM_ROWS = 4
"""Templates that a Gram matrix may have for each row that is solved with it; measured."""

LOW_PRECISION_FROM = 256
"""Smallest operator for which a product in bfloat16 repays the extra product in full precision."""


def low_precision_for(coordinates: AbstractCoordinates) -> AbstractCoordinates | None:
    """Coordinates for directions in bfloat16, where that is faster than the float32 ones given."""
    operator = coordinates.operator
    wide = operator.shape[-2] >= LOW_PRECISION_FROM
    if operator.dtype == torch.float32 and wide and multiplies_fast_in_bfloat16(operator.device):
        return coordinates.low_precision()
    return None


@dataclass(frozen=True)
class RowSolution:
    """Dual points of a block of rows, in its dtype.

    Attributes:
        dual: λ, (g, r, d).
        error: Relative error α‖∇𝒟(λ)‖/‖λ‖ that is certified in float64, (g, r).
        steps: Steps that each row took, int64 (g, r).
    """

    dual: Tensor
    error: Tensor
    steps: Tensor


def solve_rows(
    block: QueryBlock, *, tol: float, max_steps: int, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> RowSolution:
    """Solve a block of rows without making an estimate of it: for layers, which want λ* and nothing else.

    With the Gram matrix where it is small, else by passes over the templates, in coordinates in which λ has no
    cancellation; what Gram coordinates lose to it, they do not certify, and it is refined like the rest.

    Args:
        block: The rows.
        tol: Relative tolerance on λ, certified in float64.
        max_steps: Steps that a row may take.
        memory_budget: Bytes of working memory for rows that are factorised.

    Returns:
        What was reached; rows whose error exceeds ``tol`` did not converge.
    """
    dtype, wide = block.evidence.dtype, block.to(torch.float64)
    if _gram_pays(wide.offsets.shape, block.evidence.shape[1], dtype, tol):
        dual, solved = _with_gram_matrix(block, wide, tol, max_steps)
    else:
        dual, solved = _by_passes(block, wide, tol, max_steps)
    found = RowSolution(dual.to(dtype), solved.error, solved.steps)
    failing = ~(solved.error <= tol)
    if bool(failing.any()):
        index = rows_where(failing)
        again = refine_rows(
            select(block, index),
            dual.gather(1, index.unsqueeze(-1).expand(*index.shape, dual.shape[-1])),
            solved.steps.gather(1, index),
            tol=tol,
            max_steps=max_steps,
            memory_budget=memory_budget,
        )
        store(found, again, index)
    return found


def _gram_pays(templates: torch.Size, rows: int, dtype: torch.dtype, tol: float) -> bool:
    """Whether rows over templates (g, n, d) are solved sooner in n coordinates than in d.

    A Gram matrix costs as much as n rows' passes do, and what float32 computes with it is certified less finely.
    """
    _, n, d = templates
    return n <= d and n <= GRAM_ROWS * rows and (tol >= GRAM_FROM or dtype == torch.float64)


def _with_gram_matrix(
    block: QueryBlock, wide: QueryBlock, tol: float, max_steps: int
) -> tuple[Tensor, CertifiedRows]:
    """The dual points λ (g, r, d) in float64, and the rows that were solved for it."""
    templates = wide.offsets
    certified = GramCoordinates(templates @ templates.mT)
    working = GramCoordinates(certified.operator.to(block.evidence.dtype))
    evidence = certified.evidence_of(wide)
    solver = CertifiedSolver(working, certified, tol=tol, max_steps=max_steps)
    first = solver.start(Rows.of(block, evidence.to(block.evidence.dtype)))
    solved = solver.solve(first, lambda: Rows.of(wide, evidence))
    dual = wide.alpha * certified.vectors_of(wide, solved.x)
    return _nothing_without_evidence(dual, wide), solved


def _nothing_without_evidence(dual: Tensor, block: AbstractBlock) -> Tensor:
    """λ (g, r, d), 0 where z is: λ* is that, and what rounding leaves of it is not certified relative to itself."""
    return dual.where((block.evidence != 0).any(-1, keepdim=True), 0)


def _by_passes(
    block: QueryBlock, wide: QueryBlock, tol: float, max_steps: int
) -> tuple[Tensor, CertifiedRows]:
    """The dual points λ (g, r, d) in float64, and the rows that were solved for it."""
    templates, dtype = wide.offsets, block.evidence.dtype
    response = PassResponse.to_preference(templates, wide.log_preference)
    working = PassCoordinates(templates.to(dtype))
    solver = CertifiedSolver(working, PassCoordinates(templates), tol=tol, max_steps=max_steps)
    first = solver.start(Rows.of(block, block.evidence, response.to(dtype)))
    solved = solver.solve(first, lambda: Rows.of(wide, wide.evidence, response))
    return wide.alpha * solved.x, solved


def refine_rows(
    block: QueryBlock, dual: Tensor, steps: Tensor, *, tol: float, max_steps: int, memory_budget: int
) -> RowSolution:
    """Go on, in float64 and at last by factorisation, with rows that Newton's method left uncertified.

    Args:
        block: The rows.
        dual: Where they are, (g, r, d), float64.
        steps: Steps that they took, (g, r).
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take, those before counted in.
        memory_budget: Bytes of working memory.
    """
    dtype = block.evidence.dtype
    solver = StagedSolver(block, dtype, tol, max_steps, "auto", memory_budget, start=(dual, steps))
    bound = solver.certificate.dual_error
    error = (bound / solver.certificate.reference).masked_fill(bound == 0, 0)
    return RowSolution(solver.certificate.dual, error, solver.steps)


class StagedSolver:
    """Solves one block: in the problem's dtype, then in float64 where needed, at last by factorisation.

    Args:
        block: The rows, in the problem's dtype.
        dtype: That dtype, to which results are rounded.
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take.
        coordinates: Of the first stage; see :func:`~fenchel.solver.coordinates.coordinates_for`.
        memory_budget: Bytes of working memory for rows that are factorised.
        start: Float64 dual points (g, r, d), and the steps (g, r) that led there, in the place of the first stage.

    Attributes:
        certificate: What is certified so far of every row.
        steps: Steps that each row took.
        operator_products: Products of one row with the operator.
    """

    certificate: Certificate
    steps: Tensor

    def __init__(
        self,
        block: AbstractBlock,
        dtype: torch.dtype,
        tol: float,
        max_steps: int,
        coordinates: str,
        memory_budget: int,
        start: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.operator_products = 0
        self._dtype, self._tol, self._max_steps, self._budget = dtype, tol, max_steps, memory_budget
        self._wide = block.to(torch.float64)
        dual, self.steps = self._in_working_dtype(block, coordinates) if start is None else start
        self._dual = _nothing_without_evidence(dual, self._wide)
        self.certificate = certify(self._wide, self._dual, self._dtype)
        self._polish()
        self._factorise()

    def _in_working_dtype(self, block: AbstractBlock, coordinates: str) -> tuple[Tensor, Tensor]:
        """Where the problem's dtype arrives from the first-order point, and the steps it takes."""
        basis = coordinates_for(block, coordinates)
        stage = WorkingStage(
            basis, low_precision=low_precision_for(basis), tol=self._tol, max_steps=self._max_steps
        )
        x, steps = stage.approach(stage.start(Rows.of(block, basis.evidence_of(block))))
        self.operator_products += stage.operator_products
        return self._wide.alpha * basis.vectors_of(self._wide, x), steps

    def _polish(self) -> None:
        """Conjugate gradients in float64: for rows that are near, or for Hessians too large to factorise."""
        relative = self.certificate.dual_error / self.certificate.reference
        small = self._span.size <= FACTORISE_UP_TO
        failing = self._failing() & (relative < NEAR) if small else self._failing()
        if bool(failing.any()):
            self._refine(self._index(failing), by_conjugate_gradients, PATIENCE if small else self._max_steps)

    def _factorise(self) -> None:
        """Factorised Hessians in float64, for whatever is left."""
        failing = self._failing()
        if self._span.size > FACTORISE_UP_TO or not bool(failing.any()):
            return
        n, k = self._span.coordinates.factors.shape[-2:]
        each = 8 * len(failing) * k * (3 * k + 2 * n)
        index = self._index(failing)
        parts = (
            index.split(max(1, self._budget // each), dim=1) if self._wide.response.selectable else [index]
        )
        for part in parts:
            self._refine(part, by_factorisation, self._max_steps)

    def _failing(self) -> Tensor:
        return ~self.certificate.meets(self._tol) & (self.steps < self._max_steps)

    def _index(self, failing: Tensor) -> Tensor:
        """Rows to go on with: those that fail, or all, of which the others are done, where rows cannot be selected."""
        return rows_where(failing if self._wide.response.selectable else torch.ones_like(failing))

    @cached_property
    def _span(self) -> Span:
        return Span.of(self._wide)

    def _refine(self, index: Tensor, direction: DirectionFinder, max_steps: int) -> None:
        """Newton in float64, over the span of the templates, on the rows at ``index`` (g, r')."""
        left = self._max_steps - int(self.steps.gather(1, index).max())
        selectable = self._wide.response.selectable
        block = select(self._wide, index) if selectable else self._wide
        along = index.unsqueeze(-1).expand(*index.shape, self._dual.shape[-1])
        # What overflowed in the problem's dtype says nothing of where to start in float64.
        start = self._dual.gather(1, along).nan_to_num(0.0, 0.0, 0.0)
        if direction is by_factorisation:
            # Where α‖t‖² is huge the first-order point is so far out that p is a vertex and the Hessian says
            # nothing; a point whose dual is below that of 0 is a worse start than 0.
            start = torch.where(block.dual_gain(start).unsqueeze(-1) > 0, start, torch.zeros_like(start))
        span = self._span
        rows = Rows.of(block, span.within(block.evidence))
        method = Newton(span.coordinates, tol=MARGIN * self._tol, direction=direction, refresh=True)
        outcome = iterate(
            method.step,
            method.start(rows, span.within(start / block.alpha)),
            tol=MARGIN * self._tol,
            max_steps=min(left, max_steps),
            selectable=selectable,
        )
        self.operator_products += method.operator_products
        dual = block.alpha * span.joined(outcome.state.x, block.evidence)
        self.steps.scatter_add_(1, index, outcome.steps)
        before, after = select(self.certificate, index), certify(block, dual, self._dtype)
        better = (after.dual_error <= before.dual_error) & torch.isfinite(after.dual).all(-1)
        store(self.certificate, _chosen(better, after, before), index)
        dual = torch.where(better.unsqueeze(-1), dual, self._dual.gather(1, along))
        self._dual.scatter_(1, along, dual)


def _chosen(first: Tensor, one: Certificate, other: Certificate) -> Certificate:
    """Each row's certificate: the one where ``first`` (g, r) says so, else the other."""
    chosen: dict[str, Any] = {"weights": None}
    for part in fields(Certificate):
        a, b = getattr(one, part.name), getattr(other, part.name)
        if a is not None:
            chosen[part.name] = torch.where(first if a.dim() == 2 else first.unsqueeze(-1), a, b)
    return Certificate(**chosen)
