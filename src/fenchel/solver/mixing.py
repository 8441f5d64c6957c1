r"""Mixing: the fixed point of attention, extrapolated; one product and one response an iteration.

A dual point λ is the answer exactly where its mean h(λ) is the mean :math:`m = c - \lambda/\alpha` that it stands for,
and the dual's gradient is what is between them, :math:`\rho = m - h(\lambda)`. The damped iteration
:math:`m \leftarrow m - \tau\rho` is extrapolated over the last points (Anderson, 1965): of their affine combinations it
takes the one whose gradient, were it affine, is shortest. The lift of ρ, of which the next potentials are made, also
gives all the inner products that this takes, so that nothing is computed that does not move the point, where Newton's
method spends its products on directions.

The gradient falls about tenfold an iteration where :math:`\alpha\nabla^2\varphi` is of order one, as in trained
transformers, and need not fall at all where that is large: such rows are for Newton's method, which converges from
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.response import SoftmaxResponse
from fenchel.native import kernels
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates
from fenchel.solver.newton import NewtonState
from fenchel.solver.rows import Rows
from fenchel.solver.served import served

__all__ = ["Mixed", "Mixing", "NativeMixing", "Point", "mix", "mixing_from"]

DAMPING = 0.8
"""τ: how far an iteration goes towards the mean of its point."""

DEPTH = 2
"""Earlier points that an iteration extrapolates over."""

FALLING = 0.6
"""A row whose gradient is not shorter than this part of the one before is left to Newton's method."""

MOST = 10
"""Iterations at most: what still is not there by then is for Newton's method, whose last steps are quadratic."""

STRAGGLERS = 0.02
"""Mixing ends when at most this part of the rows would gain by going on: Newton's method has few to deal with then."""

RIDGE = 1 + 1e-5
"""What the squares of differences of gradients are multiplied with, so that parallel ones share what they explain."""


@dataclass(frozen=True)
class Point:
    """A point of the iteration, all (g, r, ...).

    Attributes:
        mean: Coordinates of the mean m that it stands for, (g, r, size).
        potential: Its potential over α, up to a constant a row, (g, r, n).
        residual: Coordinates of the gradient ρ there, (g, r, size).
        lifted: Its lift, (g, r, n).
        square: ‖ρ‖², (g, r).
    """

    mean: Tensor
    potential: Tensor
    residual: Tensor
    lifted: Tensor
    square: Tensor


class Mixing:
    """The last points of rows of queries, and where to go from them.

    Args:
        coordinates: Those of the points.
    """

    def __init__(self, coordinates: AbstractCoordinates) -> None:
        self._coordinates = coordinates
        # Where the damped iteration takes each point: means and potentials there, gradients at the point.
        self._images: list[Point] = []
        self._newest: list[Tensor] = []
        self._between: list[Tensor] = []

    def add(self, point: Point) -> None:
        """Take a point, the newest from then on."""
        earlier, residual = self._images[:DEPTH], point.residual
        self._between = self._newest[:1]
        self._newest = [self._coordinates.inner(residual, image.residual, image.lifted) for image in earlier]
        moved = torch.sub(point.mean, residual, alpha=DAMPING)
        reached = torch.add(point.potential, point.lifted, alpha=DAMPING)
        self._images = [replace(point, mean=moved, potential=reached), *earlier]

    def step(self, rows: Rows, lifting: AbstractCoordinates) -> Tensor:
        """Go to the next point and take it; gives the squared norm of its gradient, (g, r).

        Args:
            rows: Their data.
            lifting: Coordinates for the product, which may be of lower precision.
        """
        mean, potential = self.following()
        weights = rows.response.at(rows.response.argument(rows.alpha, potential))
        residual = mean - self._coordinates.pull(weights)
        lifted = lifting.lift(residual)
        square = self._coordinates.inner(residual, residual, lifted)
        self.add(Point(mean, potential, residual, lifted, square))
        return square

    def following(self) -> tuple[Tensor, Tensor]:
        """The mean of the next point, (g, r, size), and its potential over α, (g, r, n)."""
        images, shares = self._images, self._shares()
        return _combined(shares, [image.mean for image in images]), _combined(
            shares, [image.potential for image in images]
        )

    def further(self, rows: Rows, point: Point, most: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take a point, and go one on from it in rows where that leads somewhere near; elsewhere stay.

        Args:
            rows: Their data.
            point: The newest point.
            most: The squared distance from it that is near, (g, r); negative where nothing is.

        Returns:
            The point's coordinates, (g, r, size), its potential over α, (g, r, n), and the same of the mean that it
            leads to and of what stands for that.
        """
        self.add(point)
        mean, potential = self.undamped()
        moved = point.mean - mean
        leads = self._coordinates.inner(moved, moved, potential - point.potential) <= most
        leads = leads.unsqueeze(-1)
        return (
            self._coordinates.complement(rows, torch.where(leads, mean, point.mean)),
            torch.where(leads, potential, point.potential),
            torch.where(leads, mean, point.mean - point.residual),
            torch.where(leads, potential, point.potential + point.lifted),
        )

    def following_mean(self) -> Tensor:
        """The mean alone."""
        return _combined(self._shares(), [image.mean for image in self._images])

    def undamped(self) -> tuple[Tensor, Tensor]:
        """The same with τ = 1: h where the gradient is expected to be shortest, and the potential of its point.

        Where the curvature is small, h is much better known than λ.
        """
        mean, potential = self.following()
        rest, shares, images = 1 - DAMPING, self._shares(), self._images
        mean.sub_(_combined(shares, [image.residual for image in images]), alpha=rest)
        return mean, potential.add_(_combined(shares, [image.lifted for image in images]), alpha=rest)

    def _shares(self) -> list[Tensor]:
        """Of each earlier point, in the combination whose gradient is shortest if it is affine, (g, r, 1)."""
        newest, *earlier = self._images
        if not earlier:
            return []
        tiny = torch.finfo(newest.square.dtype).tiny ** 0.5
        # The differences of the newest gradient from the earlier ones: their products with it, and their squares.
        along = [newest.square - product for product in self._newest]
        squares = [
            (part - product + image.square).clamp_(min=tiny)
            for part, product, image in zip(along, self._newest, earlier, strict=True)
        ]
        if len(along) == 1:
            return [(along[0] / squares[0]).unsqueeze(-1)]
        (first, second), (one, other) = along, squares
        cross = first - self._newest[1] + self._between[0]
        one, other = one * RIDGE, other * RIDGE
        determinant = torch.addcmul(one * other, cross, cross, value=-1)
        return [
            (torch.addcmul(first * other, second, cross, value=-1) / determinant).unsqueeze(-1),
            (torch.addcmul(second * one, first, cross, value=-1) / determinant).unsqueeze(-1),
        ]


def _combined(shares: list[Tensor], parts: list[Tensor]) -> Tensor:
    """An affine combination: of each part but the first its share, and of the first what is left; in a new array."""
    newest, *earlier = parts
    if not shares:
        return newest.clone()
    combined = newest * (1 - sum(shares))
    for share, part in zip(shares, earlier, strict=True):
        combined.addcmul_(share, part)
    return combined


class NativeMixing(Mixing):
    """The same in native kernels, for a softmax response in Gram coordinates.

    Args:
        coordinates: Those of the points.
        points: To keep them in.
    """

    def __init__(self, coordinates: AbstractCoordinates, points: kernels.Points) -> None:
        super().__init__(coordinates)
        self.points = points

    @override
    def add(self, point: Point) -> None:
        parts = (point.mean, point.potential, point.residual, point.lifted)
        self.points.add(parts, point.square, self.points.along(point.residual))

    @override
    def step(self, rows: Rows, lifting: AbstractCoordinates) -> Tensor:
        low = lifting.operator.dtype == torch.bfloat16
        mean, potential, residual, rounded, along = self.points.mixed(DAMPING, rounded=low)
        lifted = lifting.lift(residual if rounded is None else rounded)
        square = kernels.products(residual, lifted)
        self.points.add((mean, potential, residual, lifted), square, along)
        return square

    @override
    def following(self) -> tuple[Tensor, Tensor]:
        return self.points.following(DAMPING)

    @override
    def following_mean(self) -> Tensor:
        return self.points.following_mean(DAMPING)

    @override
    def undamped(self) -> tuple[Tensor, Tensor]:
        return self.points.following(1.0)

    @override
    def further(self, rows: Rows, point: Point, most: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.add(point)
        return self.points.further(rows.rest, most)


class PartlyNativeMixing(NativeMixing):
    """The same where the response is no softmax and answers by itself: points are combined natively."""

    @override
    def step(self, rows: Rows, lifting: AbstractCoordinates) -> Tensor:
        mean, potential = self.points.following(DAMPING)
        residual = mean - rows.response.at(rows.response.argument(rows.alpha, potential))
        lifted, along = lifting.lift(residual), self.points.along(residual)
        square = kernels.products(residual, lifted)
        self.points.add((mean, potential, residual, lifted), square, along)
        return square


def mixing_from(coordinates: AbstractCoordinates, first: NewtonState) -> Mixing:
    """Mixing from the first-order point on, native where that can be."""
    rows, square = first.rows, first.square.squeeze(-1)
    gradient = (first.residual, first.lifted_residual, square)
    native = served(coordinates, rows, *gradient[:2])
    if native is not None:
        mixing = NativeMixing(coordinates, kernels.Points(native.log_preference, native.alpha))
        # In Gram coordinates the mean is there that at rest, and the potential over α the scores.
        mixing.add(Point(native.rest, rows.evidence, *gradient))
        return mixing
    others = isinstance(coordinates, GramCoordinates) and not isinstance(rows.response, SoftmaxResponse)
    if others and kernels.serves(rows.evidence, *gradient[:2], shared=(rows.rest,)):
        # What points have to know of the preference is the weights at rest.
        mixing = PartlyNativeMixing(coordinates, kernels.Points(rows.rest, 1.0))
        mixing.add(Point(rows.rest, rows.evidence, *gradient))
        return mixing
    mixing = Mixing(coordinates)
    mean, potential = coordinates.complement(rows, first.x), coordinates.scaled_potential(rows, first.lifted)
    mixing.add(Point(mean, potential, *gradient))
    return mixing


@dataclass(frozen=True)
class Mixed:
    """Where mixing ended: at the next point, which was not looked at.

    Attributes:
        mixing: The points before it.
        x: Its coordinates, (g, r, size).
        steps: Iterations.
        falling: Rows whose gradient fell at every iteration, or met the tolerance, bool (g, r).
        ended: Whether few of them are expected not to meet the tolerance.
    """

    mixing: Mixing
    x: Tensor
    steps: int
    falling: Tensor
    ended: bool


def mix(
    coordinates: AbstractCoordinates,
    first: NewtonState,
    *,
    low_precision: AbstractCoordinates | None,
    wanted: Tensor,
    tol: float,
    max_steps: int,
) -> Mixed:
    """Mix until nearly all rows can be expected to meet a tolerance at the next point.

    Args:
        coordinates: Those of the rows.
        first: The first-order point.
        low_precision: Coordinates for the products, where a faster lower precision is good enough.
        wanted: Rows that count, bool (g, r).
        tol: Length of the gradient, relative to the evidence.
        max_steps: Iterations at most, one or more.
    """
    rows, lifting = first.rows, low_precision or coordinates
    square = before = first.square.squeeze(-1)
    goal = tol**2 * rows.evidence_square.squeeze(-1)
    falling, few = wanted, STRAGGLERS * int(wanted.sum())
    mixing, step = mixing_from(coordinates, first), 1
    while True:
        # An iteration is expected to do as well as the one before it.
        expected = square * (square / before)
        ended = int((falling & (expected > goal)).sum()) <= few
        if ended or step == min(MOST, max_steps):
            mean = mixing.following_mean()
            return Mixed(mixing, coordinates.complement(rows, mean), step, falling, ended)
        before, square = square, mixing.step(rows, lifting)
        falling = falling & ((square <= FALLING**2 * before) | (square <= goal))
        step += 1
