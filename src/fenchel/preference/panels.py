r"""Panels of an interval or a rectangle, halved where integrals over them have not converged.

The integrals are those of a weight :math:`w(x)` and of the first and second moments of a vector :math:`t(x)` under
it. On each panel the Gauss-Legendre rule is compared with the same rule on its halves (quarters of a rectangle), and
panels on which they differ are halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import ProblemError

# The edges of panels in each dimension; or the coordinates of some positions.
Numbers = tuple[tuple[float, ...], ...]

# Advice for integrals that do not converge.
REMEDY = (
    "Make alpha or the evidence smaller, pass positions of peaks as points= and of jumps or kinks as breaks=, or a "
    "larger accuracy="
)

# Additional halvings of the panels for samples, by dimension.
SAMPLED = {1: 3, 2: 1}

# Minimum initial number of panels along each side, by dimension.
START = {1: 64, 2: 4}

# Sides of the initial panels at a given point, relative to the whole, by dimension.
NEAR = {1: 2.0**-30, 2: 2.0**-16}

# Maximum number of panels added to the initial ones, by dimension.
MORE = {1: 1024, 2: 384}

# Largest difference between the halvings of adjacent panels.
LAG = 3

# Smallest side of a panel that is halved, relative to the whole.
SMALLEST = 2.0**-46

# Relative rounding error of the weights above which an integral counts as not converged.
LOST = 1e-4

# Number of weights (rows times nodes) computed at once.
AT_ONCE = 2**22


@cache
def _rule(k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rule in k dimensions: nodes in (-1, 1)^k, log weights, and corners of the cells of the unit cube."""
    nodes, weights = legendre()
    ends = weights.cumsum(0) / 2
    ends[-1] = 1
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])

    def grid(part: Tensor) -> Tensor:
        return _grid([part] * k)

    return grid(nodes), grid(weights.log()).sum(-1), grid(begins), grid(ends)


def _grid(axes: Sequence[Tensor]) -> Tensor:
    """All positions (n, k) with coordinates from k axes."""
    return torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], -1)


class Listed:
    """A dataclass of tensors (p, ...) with one entry per panel."""

    def part(self, which: Tensor | slice) -> Self:
        """The entries of some panels."""
        return type(self)(*(tensor[which] for tensor in vars(self).values()))

    def joined(self, *others: Self) -> Self:
        """The concatenation with other lists."""
        columns = zip(*(vars(each).values() for each in (self, *others)), strict=True)
        return type(self)(*map(torch.cat, columns))

    def to(self, device: torch.device) -> Self:
        """The same list on a device."""
        return type(self)(*(tensor.to(device) for tensor in vars(self).values()))


@dataclass(frozen=True)
class Panels(Listed):
    """Intervals or rectangles that do not overlap.

    Attributes:
        begin: Lower corners, (p, k), in float64.
        end: Upper corners, likewise.
        depth: Numbers of halvings, (p,).
    """

    begin: Tensor
    end: Tensor
    depth: Tensor

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def size(self) -> Tensor:
        """Lengths of the sides, (p, k)."""
        return self.end - self.begin

    def halved(self) -> Self:
        """Every panel halved along each side; the parts of a panel are consecutive."""
        sides = torch.tensor([False, True], device=self.begin.device)
        upper, middle = _grid([sides] * self.begin.shape[-1]), ((self.begin + self.end) / 2).unsqueeze(1)
        begin = torch.where(upper, middle, self.begin.unsqueeze(1))
        end = torch.where(upper, self.end.unsqueeze(1), middle)
        depth = (self.depth + 1).repeat_interleave(len(upper))
        return type(self)(begin.flatten(0, 1), end.flatten(0, 1), depth)

    def unbalanced(self) -> Tensor:
        """Which panels are adjacent to one with more than ``LAG`` more halvings, bool (p,).

        The outermost nodes of a panel are 1/200 of its side from the border: a large panel does not resolve a peak at
        its border with a small one.
        """
        if int(self.depth.amax() - self.depth.amin()) <= LAG:
            return torch.zeros_like(self.depth, dtype=torch.bool)
        overlap = torch.minimum(self.end.unsqueeze(1), self.end) - torch.maximum(
            self.begin.unsqueeze(1), self.begin
        )
        beside = (overlap >= 0).all(-1) & ((overlap == 0).sum(-1) <= 1)
        return (beside & (self.depth > self.depth.unsqueeze(1) + LAG)).any(-1)

    def nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes (n, k) and their log weights (n,); the nodes of a panel are consecutive."""
        at, log_weights, _, _ = (part.to(self.begin.device) for part in _rule(self.begin.shape[-1]))
        middle, half = ((self.begin + self.end) / 2).unsqueeze(1), self.size.unsqueeze(1) / 2
        places = middle + half * at
        return places.flatten(0, 1), (half.log().sum(-1) + log_weights).flatten()

    def cells(self) -> tuple[Tensor, Tensor]:
        """Lower and upper corners of the cells around the nodes, (n, k) each, in the order of the nodes."""
        _, _, begins, ends = (part.to(self.begin.device) for part in _rule(self.begin.shape[-1]))
        low, size = self.begin.unsqueeze(1), self.size.unsqueeze(1)
        return (low + size * begins).flatten(0, 1), (low + size * ends).flatten(0, 1)

    def around(self, places: Tensor, smallest: float, whole: Tensor) -> Panels:
        """The panels, with those that contain given positions halved until they are small.

        Args:
            places: Positions, (q, k).
            smallest: Largest side of a small panel, relative to the whole.
            whole: Sides of the whole, (k,).
        """
        panels = self
        while True:
            size = panels.size.unsqueeze(1)
            holds = (panels.begin.unsqueeze(1) <= places) & (places <= panels.end.unsqueeze(1))
            long = (size > smallest * whole) & (size > 2**12 * torch.finfo(size.dtype).eps * places.abs())
            chosen = (holds & long).all(-1).any(-1)
            chosen = chosen | panels.unbalanced()
            if not bool(chosen.any()):
                return panels
            panels = panels.part(~chosen).joined(panels.part(chosen).halved())


@cache
def starting(edges: Numbers, points: Numbers, level: int | None = None) -> Panels:
    """Initial panels, of about equal size but smaller around some positions.

    Args:
        edges: In each dimension the positions at which panels begin or end, in increasing order.
        points: The positions around which panels are smaller.
        level: Number of halvings of the intervals between edges; if None, as many as needed for enough panels.
    """
    begins, ends = [], []
    for axis in edges:
        least = START[len(edges)] // (len(axis) - 1)
        count = 2 ** (max(least - 1, 0).bit_length() if level is None else level)
        parts = [
            torch.linspace(a, b, count + 1, dtype=torch.float64, device="cpu") for a, b in pairwise(axis)
        ]
        begins.append(torch.cat([part[:-1] for part in parts]))
        ends.append(torch.cat([part[1:] for part in parts]))
    begin, end = _grid(begins), _grid(ends)
    panels = Panels(begin, end, torch.zeros(len(begin), dtype=torch.int64, device="cpu"))
    if not points:
        return panels
    at = torch.tensor(points, dtype=torch.float64, device="cpu")
    return panels.around(at, NEAR[len(edges)], end.amax(0) - begin.amin(0))


@dataclass(frozen=True)
class _Integrals(Listed):
    """Integrals of 1, t - c and (t - c)² (elementwise) over each of p panels, for r rows of weights.

    Attributes:
        top: Log of the largest weight, (p, r); the integrals are divided by that weight.
        coarse: Integrals by the rule on the panel, (p, r, 1 + 2d).
        fine: Integrals by the rule on its halves, likewise.
        centre: c, (p, d).
    """

    top: Tensor
    coarse: Tensor
    fine: Tensor
    centre: Tensor


# Maps positions (n, k) to log weights (..., m, n) and to t, (n, d), both in float64.
Weighing = Callable[[Tensor], tuple[Tensor, Tensor]]


def _integrals(panels: Panels, at: Weighing, rows: int) -> _Integrals:
    """Integrals over all panels, computed for some at a time."""

    def parts() -> Iterator[_Integrals]:
        halves = 2 ** panels.begin.shape[-1]
        of_panel = len(panels.part(slice(0, 1)).nodes()[1])
        step = max(1, AT_ONCE // (rows * of_panel * halves))
        for start in range(0, len(panels), step):
            some = panels.part(slice(start, start + step))
            whole, halved = (_weighed(each, at, len(some)) for each in (some, some.halved()))
            centre = whole[1].mean(-2)
            top = torch.maximum(whole[0].amax(-1), halved[0].amax(-1)).clamp(min=-1e300)
            coarse, fine = (_moments(log, t - centre.unsqueeze(-2), top) for log, t in (whole, halved))
            yield _Integrals(top, coarse, fine, centre)

    first, *rest = parts()
    return first.joined(*rest)


def _weighed(panels: Panels, at: Weighing, count: int) -> tuple[Tensor, Tensor]:
    """Log weights (p, r, n) and t (p, n, d) at the nodes of ``count`` groups of panels."""
    places, log_lengths = panels.nodes()
    log_weights, t = at(places)
    rows = (log_weights + log_lengths).flatten(0, -2)
    return rows.unflatten(-1, (count, -1)).transpose(0, 1), t.unflatten(0, (count, -1))


def _moments(log_weights: Tensor, t: Tensor, top: Tensor) -> Tensor:
    features = torch.cat([torch.ones_like(t[..., :1]), t, t.square()], -1)
    return (log_weights - top.unsqueeze(-1)).exp() @ features


def refined(
    panels: Panels, at: Weighing, *, rows: int, accuracy: float, eps: float, span: float, exponent: Tensor
) -> tuple[Panels, Tensor]:
    """Halve panels until mass, mean and covariance of t under the weights have converged.

    The tolerance is relative to the mass for the mass, to the standard deviation of t for the mean, and to the sum of
    variances for variances; it is never below rounding.

    Args:
        panels: Initial panels.
        at: Log weights and t at positions.
        rows: Number of weights at each position.
        accuracy: The relative tolerance.
        eps: Rounding unit of the values of ``at``.
        span: Size of the numbers whose difference is t.
        exponent: Size of the numbers whose sums are log weights, (..., m). Rows in which it is not finite are ignored.

    Returns:
        The panels, on whose halves the integrals have converged, and which rows have converged, bool (..., m).
    """
    halves = 2 ** panels.begin.shape[-1]
    limit = len(panels) + MORE[panels.begin.shape[-1]]
    whole = panels.end.amax(0) - panels.begin.amin(0)
    result, sizes = _integrals(panels, at, rows), exponent.flatten()
    while True:
        shares, noise = _shares(result, panels, accuracy, eps, span, sizes)
        lost = noise > LOST
        settled = ~sizes.isfinite() | ((shares.sum(0) <= 1) & ~lost)
        size, far = panels.size, torch.maximum(panels.begin.abs(), panels.end.abs())
        divisible = ((size > SMALLEST * whole) & (size > 2**12 * eps * far)).all(-1)
        inaccurate = (shares * len(panels) > 1) & ~(settled | lost)
        unbalanced = panels.unbalanced()
        chosen = (inaccurate.any(-1) & divisible) | unbalanced
        if not bool(chosen.any()) or len(panels) + int(chosen.sum()) * (halves - 1) > limit:
            return panels, (settled & ~unbalanced.any()).reshape(exponent.shape)
        new = panels.part(chosen).halved()
        panels = panels.part(~chosen).joined(new)
        result = result.part(~chosen).joined(_integrals(new, at, rows))


def _shares(
    integrals: _Integrals, panels: Panels, accuracy: float, eps: float, span: float, exponent: Tensor
) -> tuple[Tensor, Tensor]:
    """The share of the tolerance used by each panel, (p, r); and the relative rounding of weights, (r,)."""
    d = integrals.centre.shape[-1]
    top, centre = integrals.top.amax(0), integrals.centre.unsqueeze(1)
    scale = (integrals.top - top).exp().unsqueeze(-1)
    # The rule on the halves may miss a peak found by the rule on the panel.
    total = torch.maximum(*((part[..., :1] * scale).sum(0) for part in (integrals.fine, integrals.coarse)))
    fine, difference = integrals.fine * scale / total, (integrals.fine - integrals.coarse) * scale / total
    mass, first, second = fine.split([1, d, d], -1)
    off = centre - (first + mass * centre).sum(0)
    variance = (second + 2 * off * first + off.square() * mass).sum((0, -1)).clamp(min=0)
    deviation = variance.sqrt()
    of_mass, of_first, of_second = difference.split([1, d, d], -1)
    errors = (
        of_mass.squeeze(-1).abs(),
        (of_first + off * of_mass).norm(dim=-1),
        (of_second + 2 * off * of_first + off.square() * of_mass).abs().sum(-1),
    )
    # Positions are rounded relative to their size, and weights change on the scale of the panels.
    far = torch.maximum(panels.begin.abs(), panels.end.abs())
    of_places = (mass.squeeze(-1) * (far / panels.size).amax(-1, keepdim=True)).sum(0)
    noise = 16 * eps * (1 + exponent + top.abs() + of_places)
    relative, floor = noise.clamp(min=accuracy), 64 * eps * span
    tolerated = (relative, relative * deviation + floor, relative * variance + floor * deviation + floor**2)
    tiny = torch.finfo(noise.dtype).tiny
    shares = [error / limit.clamp(min=tiny) for error, limit in zip(errors, tolerated, strict=True)]
    return torch.stack(shares).amax(0), noise


def largest(vectors: Tensor) -> float:
    """The largest norm of vectors (n, d); 1 if all are 0."""
    with torch.no_grad():
        return float(vectors.detach().norm(dim=-1).amax()) or 1.0


# Nodes of a panel, in each dimension.
NODES = 16


@cache
def legendre() -> tuple[Tensor, Tensor]:
    """Nodes in (-1, 1) and weights that sum to 2, by the eigenvalues of the Jacobi matrix (Golub and Welsch)."""
    count = torch.arange(1, NODES, dtype=torch.float64, device="cpu")
    off = count / (4 * count.square() - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes, 2 * vectors[0].square()


# Largest number of points, by dimension.
POINTS = {1: 64, 2: 16}


def checked_edges(k: int, interval: Any, breaks: Any) -> Numbers:
    """The ends of an interval or of both sides of a rectangle, and the breaks within, in increasing order.

    Raises:
        ProblemError: If an interval is invalid, or a break is outside.
    """
    if k == 1:
        return (_checked_axis("interval", interval, breaks),)
    if not isinstance(interval, Sequence) or len(interval) != k or len(breaks) not in (0, k):
        raise ProblemError(
            f"interval is {shown(interval)}, breaks {shown(breaks)}; expected a rectangle ((low, "
            "high), (low, high)), and two lists of breaks"
        )
    return tuple(
        _checked_axis(f"interval[{i}]", side, breaks[i] if breaks else ()) for i, side in enumerate(interval)
    )


def _checked_axis(name: str, interval: Any, breaks: Any) -> tuple[float, ...]:
    ends, inner = _checked_numbers(name, interval), _checked_numbers("breaks", breaks)
    if len(ends) != 2 or not -1e300 < ends[0] < ends[1] < 1e300:
        raise ProblemError(
            f"{name} is {shown(interval)}; expected two finite numbers, the lower first, such as (0.0, 1.0)"
        )
    result = tuple(sorted({*ends, *inner}))
    if not all(ends[0] <= place <= ends[1] for place in inner):
        raise ProblemError(f"breaks are {shown(breaks)}; expected positions within {name} {ends}")
    if len(result) > 65:
        raise ProblemError(f"there are {len(result) - 2} breaks; expected at most 63")
    return result


def checked_points(points: Any, edges: Numbers) -> Numbers:
    """Positions near which there may be narrow peaks, sorted and without repetition.

    Args:
        points: Numbers, or in two dimensions pairs of numbers.
        edges: Those of :func:`checked_edges`.

    Raises:
        ProblemError: If a position is outside, or there are too many.
    """
    k = len(edges)
    if not isinstance(points, Sequence | Tensor):
        raise ProblemError(
            f"points are {shown(points)}; expected a list of positions{'' if k == 1 else ' (x, y)'}"
        )
    ends = [(axis[0], axis[-1]) for axis in edges]
    within = f"the interval {ends[0]}" if k == 1 else f"the rectangle {tuple(ends)}"
    places = [tuple(_checked_numbers("points", [point] if k == 1 else point)) for point in points]
    for place in places:
        if len(place) != k:
            raise ProblemError(
                f"points are {shown(points)}; expected {k} numbers for each position, as in (x, y)"
            )
        if not all(low <= x <= high for x, (low, high) in zip(place, ends, strict=True)):
            at = place[0] if k == 1 else place
            raise ProblemError(f"points contain {at}; expected finite positions within {within}")
    result = tuple(sorted(set(places)))
    if len(result) > POINTS[k]:
        raise ProblemError(f"there are {len(result)} points; expected at most {POINTS[k]}")
    return result


def _checked_numbers(name: str, values: Any) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise ProblemError(f"{name} is {shown(values)}; expected numbers") from None
