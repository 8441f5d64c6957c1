"""Where integrals over places are taken: what intervals, breaks and points may be."""

from __future__ import annotations

from typing import Any

from fenchel.arguments import shown
from fenchel.errors import ProblemError

__all__ = ["checked_accuracy", "checked_edges", "checked_numbers", "checked_points"]

POINTS = {1: 64, 2: 16}
"""Places that a user may name."""


def checked_numbers(name: str, values: Any) -> list[float]:
    """What is given, as numbers.

    Raises:
        ProblemError: Where it is no list of them.
    """
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise ProblemError(f"{name} is {shown(values)}; expected numbers") from None


def checked_edges(name: str, interval: Any, breaks: Any) -> tuple[float, ...]:
    """The ends of an interval and the breaks within, in rising order.

    Raises:
        ProblemError: On ends that are none, or breaks outside.
    """
    ends, inner = checked_numbers(name, interval), checked_numbers("breaks", breaks)
    if len(ends) != 2 or not -1e300 < ends[0] < ends[1] < 1e300:
        raise ProblemError(
            f"{name} is {shown(interval)}; expected two finite numbers, the lower first, such as (0.0, 1.0)"
        )
    found = tuple(sorted({*ends, *inner}))
    if found[0] != ends[0] or found[-1] != ends[1] or not all(ends[0] <= place <= ends[1] for place in inner):
        raise ProblemError(f"breaks are {shown(breaks)}; expected places within {name} {tuple(ends)}")
    if len(found) > 65:
        raise ProblemError(f"breaks are {len(found) - 2} places; expected 63 at most")
    return found


def checked_points(
    given: Any, places: list[tuple[float, ...]], edges: tuple[tuple[float, ...], ...] | None
) -> tuple[tuple[float, ...], ...]:
    """The places that a user names, in order and without repetition.

    Args:
        given: What was given, for errors.
        places: The same as numbers.
        edges: Those of :func:`checked_edges` in each dimension; None where there is no interval.

    Raises:
        ProblemError: On a place outside, or too many of them.
    """
    if edges is None:
        return ()
    k = len(edges)
    ends = [(axis[0], axis[-1]) for axis in edges]
    within = f"the interval {ends[0]}" if k == 1 else f"the rectangle {tuple(ends)}"
    for place in places:
        if len(place) != k:
            raise ProblemError(
                f"points are {shown(given)}; expected {k} numbers for each place, as in (x, y)"
            )
        if not all(low <= x <= high for x, (low, high) in zip(place, ends, strict=True)):
            at = place[0] if k == 1 else place
            raise ProblemError(f"points hold {at}; expected finite places within {within}")
    found = tuple(sorted(set(places)))
    if len(found) > POINTS[k]:
        raise ProblemError(f"points are {len(found)} places; expected {POINTS[k]} at most")
    return found


def checked_accuracy(accuracy: Any) -> float:
    """To which integrals have to converge.

    Raises:
        ProblemError: If it is no number between 0 and 1.
    """
    if isinstance(accuracy, bool) or not isinstance(accuracy, int | float) or not 0 < accuracy < 1:
        raise ProblemError(
            f"accuracy is {shown(accuracy)}; expected a number above 0 and below 1, such as 1e-12"
        )
    return float(accuracy)
