r"""Newton's method whose answers are certified in float64, in stages: working dtype → float64 → factorisation.

A stage hands the next one only the rows whose certificate, recomputed in float64 from the rows' data and the dual
point, does not meet the tolerance. What the working dtype believes of its own residual decides when it stops, never
what is certified; so its last step, which the certificate follows, is not looked at before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fenchel.closeness.rounding import UNIT, summed
from fenchel.selection import rows_where, select, store
from fenchel.solver.conjugate_gradient import Direction
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates
from fenchel.solver.loop import Outcome, iterate
from fenchel.solver.newton import Newton, NewtonState, by_conjugate_gradients
from fenchel.solver.rows import Rows

__all__ = ["CertifiedNewton", "certified_error"]

DONE = 0.5
"""Rows at this fraction of the tolerance, by the working dtype's own account, take no step more."""

LAST = 0.75
"""At this multiple of √tol the next Newton step is the last: what it leaves is of the order of its square."""

NEAR = 1e-2
"""Relative certificate below which conjugate gradients refine in float64; farther rows are for a factorisation."""

PATIENCE = 6
"""Newton steps that refine in float64 before a row is left to a factorisation."""

CANCELLATION = 1e-4
"""In Gram coordinates λ/α = z + Tᵀx; where it is this much shorter than z, float64 loses half of its digits."""


def certified_error(coordinates: AbstractCoordinates, state: NewtonState) -> Tensor:
    """Relative errors of λ that float64 states certify, infinite where nothing is certified, (g, r).

    What computing the gradient may hide is a few roundings of the vectors that are added up in it, λ/α, the evidence
    and the templates, and those of the potentials: relative errors of the weights as large as these, times how far
    templates are from their mean.
    """
    evidence_norm = state.rows.evidence_square.squeeze(-1).sqrt()
    added = evidence_norm + coordinates.longest
    n, alpha = state.weights.shape[-1], state.rows.alpha.squeeze(-1)
    hidden = summed(n) * UNIT * (1 + added / state.dual_norm)
    # A potential is a sum of products of vectors as long as these, and what moves the mean is its spread under p.
    reach = state.dual_norm
    if isinstance(coordinates, GramCoordinates):
        reach = evidence_norm + 2 * coordinates.longest
    potential = (summed(coordinates.size) + 5) * UNIT * alpha * reach * coordinates.longest
    error = state.error + hidden + 2.2 * potential * coordinates.spread(state.weights) / state.dual_norm
    if isinstance(coordinates, GramCoordinates):
        error = error.masked_fill(~(state.dual_norm > CANCELLATION * evidence_norm), torch.inf)
    # No evidence: λ* = 0 = αz.
    nothing = (state.square.squeeze(-1) == 0) & (evidence_norm == 0)
    return error.nan_to_num(nan=torch.inf).masked_fill(nothing, 0)


class CertifiedNewton:
    r"""Newton's method for a block of rows, in a working dtype and then in float64.

    Rows are done where :math:`\alpha\lVert\nabla\mathcal{D}(\lambda)\rVert \le \mathtt{tol}\,\lVert\lambda\rVert`,
    computed in float64 from their data.

    Args:
        working: Coordinates in the working dtype.
        wide: The same in float64.
        low_precision: The same for directions in still lower precision, where that is faster.
        tol: Relative tolerance on λ.
        max_steps: Newton steps that a row may take.
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
        self._near = max(DONE * tol, LAST * tol**0.5)
        self._method = Newton(working, tol=tol, direction=self._direction, low_precision=low_precision)

    def start(self, rows: Rows) -> NewtonState:
        """The first-order point of rows in the working dtype."""
        return self._method.start(rows)

    def solve(self, first: NewtonState, wide_rows: Callable[[], Rows]) -> Outcome[NewtonState]:
        """Go on from ``first``.

        Args:
            first: Where to start, (g, r). Rows that are stalled there are not wanted: they stay and cost nothing.
            wide_rows: Gives the rows' data in float64; called when the working dtype has done its part.

        Returns:
            The float64 states at the points reached, computed anew from data and point; steps; and whether the
            certificates meet the tolerance. Where one does not, conjugate gradients have done what they can.
        """
        unwanted = first.stalled
        x, steps = self._points(first, unwanted)
        state = Newton(self._wide, tol=self._tol).start(wide_rows(), x)
        error = certified_error(self._wide, state)
        near = (error > self._tol) & (error < NEAR) & ~unwanted & (steps < self._max_steps)
        if bool(near.any()):
            steps = self._refine(state, near, steps)
            error = certified_error(self._wide, state)
        return Outcome(state, steps, (error <= self._tol) & ~unwanted)

    def _points(self, first: NewtonState, unwanted: Tensor) -> tuple[Tensor, Tensor]:
        """Where the working dtype arrives, in float64 (g, r, size), and steps.

        The last step is added in float64, so that the working dtype's rounding of x is no floor.
        """
        outcome = iterate(self._method.step, first, tol=self._near, max_steps=self._max_steps)
        state, steps = outcome.state, outcome.steps
        going = (state.error > DONE * self._tol) & ~unwanted & (steps < self._max_steps)
        if not bool(going.any()):
            return state.x.double(), steps
        target = (0.3 * self._tol * state.dual_norm).square().unsqueeze(-1)
        target = target.masked_fill(~going.unsqueeze(-1), torch.inf)
        coordinates = self._method.low_precision or self._working
        found = by_conjugate_gradients(coordinates, state, target)
        return state.x.double().add_(found.step), steps + going

    def _direction(self, coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
        """A direction fine enough to end where one step is left, if that is not much finer than was asked for."""
        enough = (0.4 * self._near * state.dual_norm).square().unsqueeze(-1)
        finer = torch.where(
            torch.isinf(target), target, torch.minimum(target, enough.clamp(min=0.01 * target))
        )
        return by_conjugate_gradients(coordinates, state, finer)

    def _refine(self, state: NewtonState, failing: Tensor, steps: Tensor) -> Tensor:
        """Newton steps of the failing rows in float64, with directions in the working dtype; steps then."""
        index = rows_where(failing)
        part = select(state, index)
        part = replace(part, stalled=~failing.gather(1, index))
        narrow = None if self._working.operator.dtype == torch.float64 else self._working
        method = Newton(self._wide, tol=self._tol, low_precision=narrow, refresh=True)
        left = self._max_steps - int(steps.gather(1, index).max())
        outcome = iterate(method.step, part, tol=self._tol, max_steps=min(left, PATIENCE))
        store(state, outcome.state, index)
        return steps.scatter_add(1, index, outcome.steps)
