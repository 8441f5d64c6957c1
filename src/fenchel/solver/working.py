"""The first stage towards a certified dual point, in the working dtype: mixing, and Newton's method for what is left.

What the working dtype believes of its own residual decides when it stops, never what is certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fenchel.selection import put_rows, rows_where, select
from fenchel.solver.conjugate_gradient import Direction
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.loop import iterate
from fenchel.solver.mixing import Mixed, mix
from fenchel.solver.newton import Newton, NewtonState, by_conjugate_gradients
from fenchel.solver.rows import Rows

__all__ = ["WorkingStage"]

DONE = 0.5
"""Rows at this fraction of the tolerance, by the working dtype's own account, take no step more."""

LAST = 0.75
"""At this multiple of √tol the next Newton step is the last: what it leaves is of the order of its square."""

PATIENCE = 12
"""Newton steps before float64 takes over: what takes more has met the rounding of the working dtype, or soon will."""

LOW_PRECISION_TO = 1e-4
"""Least tolerance to which products in low precision lead: what they carry along is off by about a tenth of it."""


class WorkingStage:
    """Mixing and Newton's method on a block of rows, in one dtype.

    Args:
        coordinates: Coordinates in the working dtype.
        low_precision: The same for products in a still lower precision, where that is faster.
        tol: Relative tolerance on λ that the float64 certificate will ask for.
        max_steps: Steps that a row may take.
    """

    def __init__(
        self,
        coordinates: AbstractCoordinates,
        *,
        low_precision: AbstractCoordinates | None,
        tol: float,
        max_steps: int,
    ) -> None:
        self._coordinates, self._low_precision = coordinates, low_precision
        self._tol, self._max_steps = tol, max_steps
        self._near = max(DONE * tol, LAST * tol**0.5)
        self._mixing_products = 0
        self.newton = Newton(coordinates, tol=tol, direction=self._direction, low_precision=low_precision)

    def start(self, rows: Rows) -> NewtonState:
        """The first-order point."""
        return self.newton.start(rows)

    @property
    def operator_products(self) -> int:
        """Products of one row with the operator."""
        return self.newton.operator_products + self._mixing_products

    def approach(self, first: NewtonState) -> tuple[Tensor, Tensor]:
        """Mix, and take Newton's method where that does not lead, for whoever certifies once, at the end of the stage.

        Args:
            first: Where to start, (g, r). Rows that meet the tolerance there stay.

        Returns:
            Coordinates in float64, (g, r, size), and steps, int64 (g, r).
        """
        going = ~first.stalled & ~(first.error <= DONE * self._tol)
        x, steps = first.x.to(torch.float64, copy=True), torch.zeros_like(first.error, dtype=torch.int64)
        return _with_rows(self._led, first, going, x, steps)

    def _led(self, first: NewtonState) -> tuple[Tensor, Tensor]:
        """Mixing, then Newton's method; rows that are stalled are not wanted."""
        mixed = self.mix(first)
        x = mixed.x.to(torch.float64, copy=True)
        steps = torch.full_like(first.error, mixed.steps, dtype=torch.int64)
        left = ~first.stalled & ~mixed.falling if mixed.ended else ~first.stalled
        if mixed.steps >= self._max_steps:
            return x, steps
        return _with_rows(lambda state: self.iterate(state, mixed.steps), first, left, x, steps)

    def mix(self, first: NewtonState) -> Mixed:
        """Mix from ``first`` on, (g, r). Rows that are stalled there are not wanted."""
        mixed = mix(
            self._coordinates,
            first,
            low_precision=self._low_precision if self._tol >= LOW_PRECISION_TO else None,
            wanted=~first.stalled,
            tol=DONE * self._tol,
            max_steps=self._max_steps,
        )
        products = (mixed.steps - 1) * self._coordinates.products_each
        self._mixing_products += products * first.error.numel()
        return mixed

    def iterate(self, first: NewtonState, steps_taken: int) -> tuple[Tensor, Tensor]:
        """Where Newton's method arrives from ``first``: coordinates in float64 (g, r, size), and steps (g, r).

        Its last step, which the certificate follows, is not looked at; it is added in float64, so that the working
        dtype's rounding of x is no floor.
        """
        most = min(PATIENCE, self._max_steps - steps_taken)
        selectable = first.rows.response.selectable
        outcome = iterate(self.newton.step, first, tol=self._near, max_steps=most, selectable=selectable)
        state, steps = outcome.state, outcome.steps
        going = (state.error > DONE * self._tol) & ~first.stalled & (steps < most)
        if not bool(going.any()):
            return state.x.double(), steps
        target = (0.3 * self._tol * state.dual_norm).square().unsqueeze(-1)
        target = target.masked_fill(~going.unsqueeze(-1), torch.inf)
        coordinates = self.newton.low_precision or self._coordinates
        found = by_conjugate_gradients(coordinates, state, target)
        # In a new array: where no step was taken x is the evidence itself, in float64 that of the problem.
        return state.x.double() + found.step, steps + going

    def _direction(self, coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
        """A direction fine enough to end where one step is left, if that is not much finer than was asked for."""
        enough = (0.4 * self._near * state.dual_norm).square().unsqueeze(-1)
        finer = torch.where(
            torch.isinf(target), target, torch.minimum(target, enough.clamp(min=0.01 * target))
        )
        return by_conjugate_gradients(coordinates, state, finer)


def _with_rows(
    solve: Callable[[NewtonState], tuple[Tensor, Tensor]],
    first: NewtonState,
    wanted: Tensor,
    x: Tensor,
    steps: Tensor,
) -> tuple[Tensor, Tensor]:
    """Points x (g, r, size) and steps (g, r), those of the wanted rows solved on; alone, where rows can be selected."""
    if not bool(wanted.any()):
        return x, steps
    if not first.rows.response.selectable:
        found, taken = solve(replace(first, stalled=~wanted))
        return torch.where(wanted.unsqueeze(-1), found, x), steps + taken * wanted
    index = rows_where(wanted)
    chosen = wanted.gather(1, index)
    found, taken = solve(replace(select(first, index), stalled=~chosen))
    return put_rows(x, found, index, chosen), steps.scatter_add_(1, index, taken * chosen)
