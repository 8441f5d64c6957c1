r"""Newton's method on the dual, for rows of queries that share an operator.

State: coordinates x of a dual point, and everything that follows from them. A step finds a
direction (conjugate gradients, or a factorisation), searches along it on the slope of the dual, and evaluates
the residual anew; the residual's norm is the certificate (fact 2).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from fenchel.certificate import reference_norm
from fenchel.native import kernels
from fenchel.selection import gather_rows, rows_where
from fenchel.solver.conjugate_gradient import Direction, newton_direction
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.line_search import step_length
from fenchel.solver.rows import Rows
from fenchel.solver.served import served, squared_norm

__all__ = ["DirectionFinder", "Newton", "NewtonState", "by_conjugate_gradients"]

CG_ITERATIONS = 60
CLEARLY_ABOVE = 4.0
"""A certificate that low precision puts at this many tolerances needs no better computation to be refused."""

WITHIN_REACH = 0.95
"""A step goes at most this far of the way to where the domain of the conjugate ends."""

HALFWAY = 0.5
"""Where a start lies, of the way to where the domain ends, if that is nearer than it would be."""

SHORT = 0.25
"""A step of at most this part of a direction ended at a kink, where a gradient has kinks."""

FORCING = 0.1
"""Conjugate gradients reduce the residual by min(FORCING, relative error): loosely far away, quadratically near."""


@dataclass(frozen=True)
class NewtonState:
    """Where Newton's method stands; all (g, r, ...).

    Attributes:
        rows: The data.
        x: Coordinates of the dual point, (g, r, size).
        lifted: Their lift, (g, r, n).
        argument: What the response is a function of, (g, r, n).
        weights: p, (g, r, n).
        on_way: Where the gradient has kinks, the mean of p over the last points, (g, r, n); else None.
        residual: Coordinates of the dual's gradient, (g, r, size).
        lifted_residual: Its lift, (g, r, n).
        square: Its squared norm, (g, r, 1).
        dual_norm: ‖λ‖/α, (g, r).
        error: Relative certificate α‖∇𝒟‖/‖λ‖, (g, r).
        stalled: Rows whose error no longer falls, bool (g, r).
    """

    rows: Rows
    x: Tensor
    lifted: Tensor
    argument: Tensor
    weights: Tensor
    on_way: Tensor | None
    residual: Tensor
    lifted_residual: Tensor
    square: Tensor
    dual_norm: Tensor
    error: Tensor
    stalled: Tensor

    @property
    def curving(self) -> Tensor:
        """The weights whose curvature directions are made with.

        Where a step ended early, at a kink of the gradient, the pieces on its way are among them: the last piece
        alone may lead back over the kink to one that leads here again, in ever shorter steps. A weight is 0 on one side
        of a kink, and a mean of weights curves wherever one of them does.
        """
        return self.weights if self.on_way is None else self.on_way


class DirectionFinder(Protocol):
    """Solves the Newton equation."""

    def __call__(self, coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
        """The direction whose residual has squared norm ``target`` (g, r, 1) at most; infinity asks for none."""
        ...


def by_conjugate_gradients(coordinates: AbstractCoordinates, state: NewtonState, target: Tensor) -> Direction:
    """A direction by conjugate gradients, or in closed form where there is one."""
    rows = state.rows
    closed = rows.response.resolvent(state.argument, rows.alpha, state.residual)
    if closed is not None:
        step = closed.masked_fill(torch.isinf(target), 0)
        return Direction(step, coordinates.lift(step), 1)
    return newton_direction(
        coordinates,
        state.rows.alpha,
        state.rows.response.curvature(state.argument, state.curving),
        state.residual,
        state.lifted_residual,
        state.square,
        target,
        CG_ITERATIONS,
    )


class Newton:
    """A Newton method in given coordinates.

    Args:
        coordinates: Those in which residuals and certificates are computed.
        tol: Relative tolerance, which bounds how well directions need be solved for.
        direction: How the Newton equation is solved.
        low_precision: Coordinates for directions only, when multiplying in low precision pays.
        refresh: Lift the point anew at every step instead of adding up the lifts of steps: where λ shrinks by
            many orders of magnitude on the way, what is added up keeps the rounding of its largest term.
    """

    def __init__(
        self,
        coordinates: AbstractCoordinates,
        *,
        tol: float,
        direction: DirectionFinder = by_conjugate_gradients,
        low_precision: AbstractCoordinates | None = None,
        refresh: bool = False,
    ) -> None:
        self.coordinates = coordinates
        self.low_precision = low_precision
        self.operator_products = 0
        self._tol, self._direction, self._refresh = tol, direction, refresh

    def start(self, rows: Rows, x: Tensor | None = None) -> NewtonState:
        """The state at coordinates x, by default at the first-order point λ = αz; inside of the conjugate's domain."""
        if x is not None:
            lifted = self.coordinates.lift(x)
            self._count(1, lifted)
            x, lifted = self._inside(rows, x, lifted)
            return self._at(rows, x, lifted, self._argument(rows, lifted), None)
        x, lifted = self.coordinates.first_order_point(rows)
        self._count(1, lifted)
        x, lifted = self._inside(rows, x, lifted)
        native = None if self._refresh else served(self.coordinates, rows)
        if native is None:
            return self._at(rows, x, lifted, self._argument(rows, lifted), None)
        argument, weights, residual = kernels.first_order(
            rows.evidence, native.log_preference, native.rest, native.alpha
        )
        dual_norm = rows.evidence_square.squeeze(-1).clamp(min=0).sqrt()
        return self._with_gradient(rows, x, lifted, argument, None, weights, residual, dual_norm)

    def _inside(self, rows: Rows, x: Tensor, lifted: Tensor) -> tuple[Tensor, Tensor]:
        """A point, drawn towards 0 where the domain of the conjugate ends before it."""
        if not rows.response.bordered:
            return x, lifted
        argument = self._argument(rows, lifted)
        reach = rows.response.reach(torch.zeros_like(argument), argument)
        if reach is None:
            return x, lifted
        share = torch.where(reach > 1, 1, HALFWAY * reach).unsqueeze(-1)
        return share * x, share * lifted

    def step(self, state: NewtonState, active: Tensor) -> NewtonState:
        """One Newton step of the active rows (g, r)."""
        forcing = state.error.clamp(max=FORCING).unsqueeze(-1)
        enough = (0.25 * self._tol * state.dual_norm).square().unsqueeze(-1)
        target = torch.maximum(forcing.square() * state.square, enough)
        target = target.masked_fill(~active.unsqueeze(-1), torch.inf)
        found = self._direction(self.low_precision or self.coordinates, state, target)
        lifted_step, products = found.lifted, found.products
        if self.low_precision is not None:
            # The direction may be rough, but what is added to the state must be the lift of what is added to x.
            lifted_step = self.coordinates.lift(found.step)
            products += 1
        self._count(products, state.lifted)
        step = found.step
        reach = state.rows.response.reach(state.argument, state.rows.alpha * lifted_step)
        if reach is not None:
            inside = (WITHIN_REACH * reach).clamp(max=1).unsqueeze(-1)
            step, lifted_step = inside * step, inside * lifted_step
        rising = self.coordinates.inner(state.residual, step, lifted_step)
        along = self.coordinates.inner(step, step, lifted_step)
        length, full = step_length(state.rows, state.argument, state.weights, lifted_step, rising, along)
        t = length.unsqueeze(-1)
        if self._refresh:
            x = torch.addcmul(state.x, t, step)
            lifted = self.coordinates.lift(x)
            argument, weights = self._argument(state.rows, lifted), None
            self._count(1, lifted)
        elif bool((length == 1).all()):
            x, lifted = state.x + step, state.lifted + lifted_step
            argument, weights = full
        else:
            x = torch.addcmul(state.x, t, step)
            lifted = torch.addcmul(state.lifted, t, lifted_step)
            argument, weights = torch.addcmul(state.argument, state.rows.alpha * t, lifted_step), None
        following = self._at(state.rows, x, lifted, argument, state, weights)
        overflown = torch.isnan(following.error) & ~torch.isnan(state.error)
        if bool(overflown.any()):
            following = _kept(state, following, overflown)
        if state.on_way is not None:
            mean = (state.on_way + following.weights) / 2
            following = replace(following, on_way=torch.where(t < SHORT, mean, following.weights))
        if self.low_precision is not None and bool((following.error > 0.25 * state.error)[active].any()):
            self.low_precision = None
        return following

    def _at(
        self,
        rows: Rows,
        x: Tensor,
        lifted: Tensor,
        argument: Tensor,
        before: NewtonState | None,
        weights: Tensor | None = None,
    ) -> NewtonState:
        c = self.coordinates
        weights = rows.response.at(argument) if weights is None else weights
        # Where λ shrinks by many orders of magnitude, p - u has to be right relative to itself.
        if self._refresh:
            potential = rows.alpha * c.scaled_potential(rows, lifted)
            moved = rows.response.displacement(potential, weights)
        else:
            moved = weights - rows.rest
        residual = c.residual(rows, moved, x)
        dual_norm = c.dual_square(rows, x, lifted).clamp(min=0).sqrt()
        return self._with_gradient(rows, x, lifted, argument, before, weights, residual, dual_norm)

    def _with_gradient(
        self,
        rows: Rows,
        x: Tensor,
        lifted: Tensor,
        argument: Tensor,
        before: NewtonState | None,
        weights: Tensor,
        residual: Tensor,
        dual_norm: Tensor,
    ) -> NewtonState:
        reference = reference_norm(dual_norm, rows.evidence_square.squeeze(-1).sqrt())
        lifted_residual, square = self._lifted_residual(residual, reference, before is None)
        error = torch.where(square > 0, square.sqrt() / reference, torch.zeros_like(square))
        stalled = torch.zeros_like(error, dtype=torch.bool)
        if before is not None:
            # Newton's method halves the error at least once it is near; one that does not is at its rounding floor.
            stalled = before.stalled | (
                ~(error < 0.5 * before.error) & (before.error < torch.finfo(x.dtype).eps ** 0.5)
            )
            stalled |= torch.isnan(error)
        return NewtonState(
            rows,
            x,
            lifted,
            argument,
            weights,
            None if rows.response.smooth else weights,
            residual,
            lifted_residual,
            square.unsqueeze(-1),
            dual_norm,
            error,
            stalled,
        )

    def _lifted_residual(self, residual: Tensor, reference: Tensor, precisely: bool) -> tuple[Tensor, Tensor]:
        """The lift of a residual and its squared norm, in low precision where that shows that a row is not done."""
        rough = None if precisely else self.low_precision
        self._count(self.coordinates.products_each, residual)
        lifted = (rough or self.coordinates).lift(residual)
        square = squared_norm(self.coordinates, residual, lifted)
        if rough is not None:
            near = square.sqrt() <= CLEARLY_ABOVE * self._tol * reference
            if bool(near.any()):
                index = rows_where(near)
                chosen = gather_rows(residual, index)
                precise = self.coordinates.lift(chosen)
                self._count(self.coordinates.products_each, chosen)
                lifted.scatter_(1, index.unsqueeze(-1).expand_as(precise), precise)
                square.scatter_(1, index, self.coordinates.inner(chosen, chosen, precise).clamp(min=0))
        return lifted, square

    def _argument(self, rows: Rows, lifted: Tensor) -> Tensor:
        return rows.response.argument(rows.alpha, self.coordinates.scaled_potential(rows, lifted))

    def _count(self, products: int, lifted: Tensor) -> None:
        self.operator_products += products * lifted.shape[0] * lifted.shape[1]


def _kept(state: NewtonState, following: NewtonState, rows: Tensor) -> NewtonState:
    """The following state, but the one before, as far as it goes, in the rows (g, r) that are marked."""
    kept = {
        part.name: torch.where(rows if new.dim() == 2 else rows.unsqueeze(-1), getattr(state, part.name), new)
        for part in fields(NewtonState)
        if isinstance(new := getattr(following, part.name), Tensor)
    }
    return replace(following, **{**kept, "stalled": following.stalled | rows})
