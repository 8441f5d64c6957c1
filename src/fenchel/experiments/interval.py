"""The mean of a few seeds with its 95 % interval, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MeanInterval", "is_possible", "mean_interval", "t_quantile"]

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
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return MeanInterval(mean, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return MeanInterval(mean, t_quantile((1 + _LEVEL) / 2, count - 1) * math.sqrt(variance / count), count)


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


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution, by bisection of its distribution function.

    Args:
        probability: Between ½ and 1.
        freedom: Degrees of freedom ν, a whole number above 0.

    Returns:
        t with P(T ≤ t) = ``probability``.

    Example:
        >>> round(t_quantile(0.975, 2), 3)
        4.303
    """
    low, high = 0.0, 1.0
    while _t_distribution(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_distribution(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _t_distribution(t: float, freedom: int) -> float:
    """P(T ≤ t) for t ≥ 0 by the finite series in θ = atan(t/√ν): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    term, total = 1.0, 0.0
    if freedom % 2:
        term = math.cos(angle)
        for power in range(1, freedom - 1, 2):
            total += term
            term *= square * (power + 1) / (power + 2)
        within = 2 / math.pi * (angle + sine * total)
    else:
        for power in range(0, freedom - 1, 2):
            total += term
            term *= square * (power + 1) / (power + 2)
        within = sine * total
    return (1 + within) / 2
