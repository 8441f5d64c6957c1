r"""Newton's method whose answers are certified in float64, in stages: working dtype → float64 → factorisation.

A stage hands the next one only the rows whose certificate, recomputed in float64 from the rows' data and the dual
point, does not meet the tolerance. What the working dtype believes of its own residual decides when it stops, never
what is certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fenchel.selection import rows_where, select, store
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates
from fenchel.solver.loop import Outcome, iterate
from fenchel.solver.newton import Newton, NewtonState, by_conjugate_gradients
from fenchel.solver.rows import Rows

__all__ = ["certified_newton"]

AIM = 0.5
"""The working dtype aims at this fraction of the tolerance: what it cannot see of its own error has to fit beside it."""

QUADRATIC = 0.25
"""Below this multiple of √tol a Newton step is the last: its error is of the order of the square."""

NEAR = 1e-2
"""Relative certificate below which conjugate gradients refine; farther rows are for a factorisation."""

PATIENCE = 6
"""Newton steps that refine in float64 before a row is left to a factorisation."""

CANCELLATION = 1e-4
"""In Gram coordinates λ/α = z + Tᵀx; where it is this much shorter than z, float64 loses half of its digits."""


def certified_newton(
    method: Newton,
    first: NewtonState,
    wide: AbstractCoordinates,
    wide_rows: Callable[[], Rows],
    *,
    tol: float,
    max_steps: int,
) -> Outcome[NewtonState]:
    r"""Maximise the dual of a block of rows to :math:`\alpha\lVert\nabla\mathcal{D}(\lambda)\rVert \le
    \mathtt{tol}\,\lVert\lambda\rVert`, certified in float64.

    Args:
        method: Newton's method in the working dtype.
        first: Where it starts, (g, r). Rows that are stalled there are not wanted: they stay and cost nothing.
        wide: The method's coordinates in float64.
        wide_rows: Gives the rows' data in float64, to be called when the working dtype has done its part.
        tol: Relative tolerance on λ.
        max_steps: Newton steps that a row may take.

    Returns:
        The float64 states at the points reached, computed anew from ``wide`` and ``wide_rows``; which of the rows'
        certificates meet the tolerance; and steps. Where one does not, conjugate gradients have done what they can.
    """
    unwanted = first.stalled
    outcome = iterate(method.step, first, tol=max(AIM * tol, QUADRATIC * tol**0.5), max_steps=max_steps)
    steps, x = outcome.steps, _last_step(method, outcome, unwanted, tol, max_steps)
    del outcome
    state = Newton(wide, tol=tol).start(wide_rows(), x)
    failing = ~(_error(wide, state) <= tol) & ~unwanted & (steps < max_steps)
    near = failing & (_error(wide, state) < NEAR)
    if bool(near.any()):
        state, steps = _refined(method, wide, state, near, steps, tol, max_steps)
    return Outcome(state, steps, (_error(wide, state) <= tol) & ~unwanted)


def _last_step(
    method: Newton, outcome: Outcome[NewtonState], unwanted: Tensor, tol: float, max_steps: int
) -> Tensor:
    """Points after one more Newton step of the rows that are near, in float64 and not looked at: (g, r, size).

    Where it leads shows in the certificate that follows. It is added in float64, so that the working dtype's
    rounding of x is no floor. The steps taken are counted in the outcome.
    """
    state = outcome.state
    going = (state.error > AIM * tol) & ~unwanted & ~torch.isnan(state.error) & (outcome.steps < max_steps)
    if not bool(going.any()):
        return state.x.double()
    target = (0.5 * AIM * tol * state.dual_norm).square().unsqueeze(-1)
    target = target.masked_fill(~going.unsqueeze(-1), torch.inf)
    found = by_conjugate_gradients(method.low_precision or method.coordinates, state, target)
    outcome.steps += going
    return state.x.double().add_(found.step)


def _error(coordinates: AbstractCoordinates, state: NewtonState) -> Tensor:
    """Certified relative errors, infinite where the coordinates cannot tell, (g, r)."""
    if not isinstance(coordinates, GramCoordinates):
        return state.error
    told = state.dual_norm > CANCELLATION * state.rows.evidence_square.squeeze(-1).sqrt()
    return state.error.masked_fill(~told & (state.square.squeeze(-1) > 0), torch.inf)


def _refined(
    method: Newton,
    wide: AbstractCoordinates,
    state: NewtonState,
    failing: Tensor,
    steps: Tensor,
    tol: float,
    max_steps: int,
) -> tuple[NewtonState, Tensor]:
    """The states after Newton steps of the failing rows in float64, with directions in the working dtype."""
    index = rows_where(failing)
    part = select(state, index)
    part = replace(part, stalled=~failing.gather(1, index))
    narrow = method.coordinates if method.coordinates.operator.dtype != torch.float64 else None
    refine = Newton(wide, tol=tol, low_precision=narrow, refresh=True)
    left = max_steps - int(steps.gather(1, index).max())
    outcome = iterate(refine.step, part, tol=tol, max_steps=min(left, PATIENCE))
    store(state, outcome.state, index)
    return state, steps.scatter_add(1, index, outcome.steps)
