"""Intervals drawn on a line: places from 0 to 100, so that a page needs no more than percentages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Whisker", "WhiskerAxis"]

_MARGIN = 4.0  # of 100, so that what leaves the axis is seen to


@dataclass(frozen=True)
class Whisker:
    """A value and its interval, as places from 0 to 100.

    Attributes:
        low_at: Where the interval begins, at the axis' end if nothing is known there.
        high_at: Where it ends.
        at: Where the value stands; None where there is none.
    """

    low_at: float
    high_at: float
    at: float | None

    @property
    def width(self) -> float:
        """How long the interval is."""
        return round(self.high_at - self.low_at, 2)


@dataclass(frozen=True)
class WhiskerAxis:
    """A line from the least to the greatest of some numbers.

    Attributes:
        low: Its left end.
        high: Its right end.
    """

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None], *, through: float) -> WhiskerAxis:
        """The line that holds all finite values, and one more.

        Example:
            >>> WhiskerAxis.of([-1.0, None, float("inf"), 3.0], through=0.0)
            WhiskerAxis(low=-1.0, high=3.0)
        """
        finite = [through, *(value for value in values if value is not None and math.isfinite(value))]
        return cls(min(finite), max(finite))

    def place(self, value: float) -> float:
        """Where a value stands, from 0 to 100; infinite ones at the ends.

        Example:
            >>> axis = WhiskerAxis(0.0, 2.0)
            >>> axis.place(0.0), axis.place(1.0), axis.place(float("inf"))
            (4.0, 50.0, 100.0)
        """
        if math.isinf(value):
            return 0.0 if value < 0 else 100.0
        width = self.high - self.low or 1.0
        return round(_MARGIN + (100 - 2 * _MARGIN) * (value - self.low) / width, 2)

    def whisker(self, value: float | None, low: float | None, high: float | None) -> Whisker:
        """A value with its interval; without one it is a point."""
        at = None if value is None else self.place(value)
        middle = self.place(self.low) if at is None else at
        return Whisker(
            middle if low is None else self.place(low), middle if high is None else self.place(high), at
        )
