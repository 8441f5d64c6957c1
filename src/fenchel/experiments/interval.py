"""The mean of a few seeds with its 95 % interval, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MeanInterval", "is_possible", "mean_interval"]

_LEVEL = 0.95


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % interval.

    Attributes:
        mean: Of the values.
        half_width: The interval is mean ± half_width; None for a single value, which has no interval.
        count: How many values.
    """

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float | None:
        """The lower end."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """The upper end."""
        return None if self.half_width is None else self.mean + self.half_width

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and zero is outside of it."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def mean_interval(values: Sequence[float]) -> MeanInterval:
    r"""The mean of independent values with its 95 % interval.

    .. math:: \bar x \pm t_{0.975,\,n-1}\, s / \sqrt n

    Args:
        values: One number a seed, at least one.

    Returns:
        The mean and the interval, without one where there is a single value.

    Example:
        >>> found = mean_interval([0.80, 0.82, 0.84])
        >>> round(found.mean, 3), round(found.half_width, 4)
        (0.82, 0.0497)
    """
    from scipy import stats

    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return MeanInterval(mean, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = float(stats.t.ppf((1 + _LEVEL) / 2, count - 1))
    return MeanInterval(mean, quantile * math.sqrt(variance / count), count)


def is_possible(found: MeanInterval, least: float, most: float) -> bool:
    """Whether all of an interval can be: that of an accuracy must lie between 0 and 1.

    Args:
        found: A mean with its interval.
        least: What the quantity is at least.
        most: What it is at most.

    Returns:
        Whether there is an interval, and none of it is outside.

    Example:
        >>> is_possible(MeanInterval(0.75, 0.64, 2), 0.0, 1.0)
        False
    """
    half_width = found.half_width
    return half_width is not None and least <= found.mean - half_width and found.mean + half_width <= most
