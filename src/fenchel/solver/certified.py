r"""Rows of queries solved in a working dtype and certified in float64.

What the working dtype reaches is certified by potentials, weights and gradient that are computed anew in float64 from
the rows' data and the dual point. Rows whose certificate does not meet the tolerance, but nearly does, are refined in
float64; the others are left to a factorisation (:mod:`fenchel.solver.staged`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fenchel.closeness.rounding import UNIT, summed
from fenchel.selection import gather_rows, put_rows, rows_where, select
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates, dot
from fenchel.solver.loop import COMPACT_BELOW, iterate
from fenchel.solver.mixing import Mixed
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.rows import Rows
from fenchel.solver.working import WorkingStage

__all__ = ["CertifiedRows", "CertifiedSolver"]

NEAR = 1e-2
"""Relative certificate below which conjugate gradients refine in float64; farther rows are for a factorisation."""

PATIENCE = 6
"""Newton steps that refine in float64 before a row is left to a factorisation."""

CANCELLATION = 1e-4
"""In Gram coordinates λ/α = z + Tᵀx; where it is this much shorter than z, float64 loses half of its digits."""


def _certified(
    coordinates: AbstractCoordinates, rows: Rows, weights: Tensor, square: Tensor, dual_norm: Tensor
) -> Tensor:
    r"""Relative errors of λ that a float64 evaluation certifies, infinite where nothing is certified, (g, r).

    What computing the gradient may hide is a few roundings of the vectors that are added up in it, λ/α, the evidence
    and the templates, and those of the potentials: relative errors of the weights as large as these, times how far
    templates are from their mean.

    Args:
        coordinates: In float64.
        rows: The rows' data.
        weights: p(λ), (g, r, n).
        square: At least ‖∇𝒟(λ)‖² as evaluated, (g, r).
        dual_norm: ‖λ‖/α, (g, r).
    """
    evidence_norm = rows.evidence_square.squeeze(-1).sqrt()
    added = evidence_norm + coordinates.longest
    n, alpha = coordinates.terms, rows.alpha.squeeze(-1)
    hidden = summed(n) * UNIT * (1 + added / dual_norm)
    # A potential is a sum of products of vectors as long as these, and what moves the mean is its spread under p.
    reach = dual_norm
    if isinstance(coordinates, GramCoordinates):
        reach = evidence_norm + 2 * coordinates.longest
    potential = (summed(coordinates.size) + 5) * UNIT * alpha * reach * coordinates.longest
    error = square.sqrt() / dual_norm + hidden + 2.2 * potential * coordinates.spread(weights) / dual_norm
    if isinstance(coordinates, GramCoordinates):
        error = error.masked_fill(~(dual_norm > CANCELLATION * evidence_norm), torch.inf)
    # No evidence: λ* = 0 = αz.
    nothing = (square == 0) & (evidence_norm == 0)
    return error.nan_to_num(nan=torch.inf).masked_fill(nothing, 0)


@dataclass(frozen=True)
class CertifiedRows:
    """Rows whose dual points have been certified as well as conjugate gradients can.

    Attributes:
        x: Coordinates of the dual points, float64, (g, r, size).
        dual_norm: ‖λ‖/α, float64, (g, r).
        error: Relative error of λ that float64 certifies, infinite where nothing is certified, (g, r).
        steps: Iterations and Newton steps, int64 (g, r).
        further: Coordinates of a point one iteration further, in the working dtype, (g, r, size); those of the
            certified point where an iteration did not lead nearer.
        potential: The potential over α at that point, (g, r, n).
        mean: Coordinates of the mean h there, (g, r, size); where the curvature is small it is known better than λ.
        image: The potential over α of the point that stands for this mean, c - λ/α = h, (g, r, n).
    """

    x: Tensor
    dual_norm: Tensor
    error: Tensor
    steps: Tensor
    further: Tensor
    potential: Tensor
    mean: Tensor
    image: Tensor


@dataclass(frozen=True)
class _Evaluated:
    """What float64 sees at a point, all (g, r, ...).

    Attributes:
        potential: The potential over α, in the working dtype, as are the next three.
        residual: ρ.
        lifted: Its lift.
        square: ‖ρ‖², (g, r).
        dual_norm: ‖λ‖/α, float64, (g, r).
        error: Certified relative error of λ, float64, (g, r).
    """

    potential: Tensor
    residual: Tensor
    lifted: Tensor
    square: Tensor
    dual_norm: Tensor
    error: Tensor


class CertifiedSolver:
    r"""Solves blocks of rows in a working dtype and certifies them in float64.

    Rows are done where :math:`\alpha\lVert\nabla\mathcal{D}(\lambda)\rVert \le \mathtt{tol}\,\lVert\lambda\rVert`,
    computed in float64 from their data.

    Args:
        working: Coordinates in the working dtype.
        wide: The same in float64.
        low_precision: The same for products in still lower precision, where that is faster.
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take.
    """

    def __init__(
        self,
        working: AbstractCoordinates,
        wide: AbstractCoordinates,
        *,
        low_precision: AbstractCoordinates | None = None,
        tol: float,
        max_steps: int,
    ) -> None:
        self._working, self._wide = working, wide
        self._tol, self._max_steps = tol, max_steps
        self._stage = WorkingStage(working, low_precision=low_precision, tol=tol, max_steps=max_steps)

    def start(self, rows: Rows) -> NewtonState:
        """The first-order point of rows in the working dtype."""
        return self._stage.start(rows)

    def solve(self, first: NewtonState, wide_rows: Callable[[], Rows]) -> CertifiedRows:
        """Go on from ``first``: mixing, then Newton's method where that is far off, then float64 where it is near.

        Args:
            first: Where to start, (g, r). Rows that are stalled there are not wanted: they stay and cost nothing.
            wide_rows: Gives the rows' data in float64; called when the working dtype has done its part.
        """
        wanted = ~first.stalled
        if first.rows.response.selectable and int(wanted.sum(-1).max()) <= COMPACT_BELOW * wanted.shape[1]:
            return self._solve_some(first, wanted, wide_rows)
        mixed = self._stage.mix(first)
        rows, x = wide_rows(), mixed.x.to(torch.float64, copy=True)
        seen = self._evaluated(rows, x)
        steps = mixed.steps * wanted
        found = CertifiedRows(
            x, seen.dual_norm, seen.error, steps, *self._further(first.rows, mixed, x, seen)
        )
        far = wanted & ~(found.error < NEAR) & (found.steps < self._max_steps)
        if bool(far.any()):
            self._solve_by_newton(found, first, rows, far)
        near = wanted & (found.error > self._tol) & (found.error < NEAR) & (found.steps < self._max_steps)
        if bool(near.any()):
            self._refine(found, rows, first.rows, near)
        return found

    def _solve_some(self, first: NewtonState, wanted: Tensor, wide_rows: Callable[[], Rows]) -> CertifiedRows:
        """Solve for the wanted rows alone; the others stay at the first-order point, uncertified."""
        c, rows, index = self._working, first.rows, rows_where(wanted)
        mean, potential = c.complement(rows, first.x), c.scaled_potential(rows, first.lifted)
        found = CertifiedRows(
            first.x.to(torch.float64, copy=True),
            first.dual_norm.to(torch.float64, copy=True),
            torch.full_like(first.error, torch.inf, dtype=torch.float64),
            torch.zeros_like(wanted, dtype=torch.int64),
            first.x.clone(),
            potential.expand_as(first.argument).clone(),
            mean - first.residual,
            (potential + first.lifted_residual).expand_as(first.argument).clone(),
        )
        if index.shape[1]:
            chosen = wanted.gather(1, index)
            part = replace(select(first, index), stalled=~chosen)
            _store(found, self.solve(part, lambda: select(wide_rows(), index)), index, chosen)
        return found

    def _evaluated(self, rows: Rows, x: Tensor) -> _Evaluated:
        """A point seen in float64, but for the product of its gradient with the Gram matrix, which is allowed for."""
        wide, narrow = self._wide, self._working.operator.dtype
        lifted = wide.lift(x)
        potential = wide.scaled_potential(rows, lifted)
        weights = rows.response.at(rows.response.argument(rows.alpha, potential))
        residual = wide.residual(rows, weights - rows.rest, x)
        dual_norm = wide.dual_square(rows, x, lifted).clamp(min=0).sqrt()
        working = residual.to(narrow)
        lifted_residual = self._working.lift(working)
        if isinstance(wide, GramCoordinates):
            square = dot(working, lifted_residual).clamp(min=0)
            unit = torch.finfo(narrow).eps / 2
            allowance = (2 * summed(wide.size) + 8) * unit
            bound = square.double() + allowance * (residual.abs().sum(-1) * wide.longest).square()
        else:
            square = bound = dot(residual, residual)
        error = _certified(wide, rows, weights, bound, dual_norm)
        return _Evaluated(potential.to(narrow), working, lifted_residual, square.to(narrow), dual_norm, error)

    def _further(self, rows: Rows, mixed: Mixed, x: Tensor, seen: _Evaluated) -> tuple[Tensor, ...]:
        """One iteration on from what was evaluated, where that leads nearer: its product has been computed.

        With an error of e at the certified point, a point at most 2e from it is within 3e of the answer.
        """
        c = self._working
        mean = c.complement(rows, x.to(seen.potential.dtype))
        mixed.mixing.add(mean, seen.potential, seen.residual, seen.lifted, seen.square)
        next_mean, next_potential = mixed.mixing.undamped()
        moved = mean - next_mean
        square = c.inner(moved, moved, next_potential - seen.potential)
        leads = mixed.falling & (square <= (2 * seen.error * seen.dual_norm).square())
        leads = leads.unsqueeze(-1)
        return (
            c.complement(rows, torch.where(leads, next_mean, mean)),
            torch.where(leads, next_potential, seen.potential),
            torch.where(leads, next_mean, mean - seen.residual),
            torch.where(leads, next_potential, seen.potential + seen.lifted),
        )

    def _at(self, rows: Rows, x: Tensor, seen: _Evaluated, steps: Tensor) -> CertifiedRows:
        """Rows that stay where they were evaluated."""
        working = x.to(seen.potential.dtype)
        return CertifiedRows(
            x,
            seen.dual_norm,
            seen.error,
            steps,
            working,
            seen.potential,
            self._working.complement(rows, working) - seen.residual,
            seen.potential + seen.lifted,
        )

    def _solve_by_newton(self, found: CertifiedRows, first: NewtonState, rows: Rows, far: Tensor) -> None:
        """Newton's method from the first-order point, in place, for rows where mixing did not lead near."""
        index = rows_where(far)
        chosen = far.gather(1, index)
        start = replace(select(first, index), stalled=~chosen)
        x, steps = self._stage.iterate(start, int(found.steps.max()))
        seen = self._evaluated(select(rows, index), x)
        _store(found, self._at(start.rows, x, seen, found.steps.gather(1, index) + steps), index, chosen)

    def _refine(self, found: CertifiedRows, rows: Rows, working: Rows, near: Tensor) -> None:
        """Newton steps in float64, with directions in the working dtype, in place."""
        index = rows_where(near)
        chosen, steps = near.gather(1, index), found.steps.gather(1, index)
        c = self._working
        narrow = None if c.operator.dtype == torch.float64 or c.products_each == 0 else c
        method = Newton(self._wide, tol=self._tol, low_precision=narrow, refresh=True)
        state = method.start(select(rows, index), gather_rows(found.x, index))
        left = min(self._max_steps - int(steps[chosen].max()), PATIENCE)
        outcome = iterate(method.step, replace(state, stalled=~chosen), tol=self._tol, max_steps=left)
        state = outcome.state
        seen = self._evaluated(state.rows, state.x)
        # The norm of the gradient is seen in float64 too: at this tolerance what float32 may hide of it is too much.
        square = state.square.squeeze(-1)
        error = _certified(self._wide, state.rows, state.weights, square, state.dual_norm)
        seen = replace(seen, error=torch.minimum(seen.error, error))
        _store(found, self._at(select(working, index), state.x, seen, steps + outcome.steps), index, chosen)


def _store(found: CertifiedRows, part: CertifiedRows, index: Tensor, chosen: Tensor) -> None:
    """Put the chosen (g, r') of some rows in their places, in place."""
    for field in fields(CertifiedRows):
        put_rows(getattr(found, field.name), getattr(part, field.name), index, chosen)
