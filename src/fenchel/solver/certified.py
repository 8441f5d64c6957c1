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

from fenchel.selection import gather_rows, put_rows, rows_where, select
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.evaluation import Evaluated, certified_error, evaluated
from fenchel.solver.loop import COMPACT_BELOW, iterate
from fenchel.solver.mixing import Mixed, Point
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.rows import Rows
from fenchel.solver.working import WorkingStage

__all__ = ["CertifiedRows", "CertifiedSolver"]

NEAR = 1e-2
"""Relative certificate below which conjugate gradients refine in float64; farther rows are for a factorisation."""

PATIENCE = 6
"""Newton steps that refine in float64 before a row is left to a factorisation."""


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

    def _evaluated(self, rows: Rows, x: Tensor) -> Evaluated:
        return evaluated(self._working, self._wide, rows, x)

    def _further(self, rows: Rows, mixed: Mixed, x: Tensor, seen: Evaluated) -> tuple[Tensor, ...]:
        """One iteration on from what was evaluated, where that leads nearer: its product has been computed.

        With an error of e at the certified point, a point at most 2e from it is within 3e of the answer.
        """
        mean = self._working.complement(rows, x.to(seen.potential.dtype))
        point = Point(mean, seen.potential, seen.residual, seen.lifted, seen.square)
        most = (2 * seen.error * seen.dual_norm).square().to(seen.square.dtype)
        return mixed.mixing.further(rows, point, most.masked_fill(~mixed.falling, -1))

    def _at(self, rows: Rows, x: Tensor, seen: Evaluated, steps: Tensor) -> CertifiedRows:
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
        spread = self._wide.spread(state.weights)
        error = certified_error(self._wide, state.rows, square, state.dual_norm, spread)
        seen = replace(seen, error=torch.minimum(seen.error, error))
        _store(found, self._at(select(working, index), state.x, seen, steps + outcome.steps), index, chosen)


def _store(found: CertifiedRows, part: CertifiedRows, index: Tensor, chosen: Tensor) -> None:
    """Put the chosen (g, r') of some rows in their places, in place."""
    for field in fields(CertifiedRows):
        put_rows(getattr(found, field.name), getattr(part, field.name), index, chosen)
