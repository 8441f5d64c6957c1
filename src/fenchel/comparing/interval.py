"""Intervals of medians and of their differences, from counts alone and for every distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["UNKNOWN", "Interval", "difference", "median_ranks"]


@dataclass(frozen=True)
class Interval:
    """Two ends, the lower one possibly −∞ and the upper one ∞ where nothing is known."""

    low: float
    high: float

    @property
    def direction(self) -> int:
        """1 if all of it lies above 0, −1 if all of it lies below, else 0.

        Example:
            >>> Interval(0.1, math.inf).direction, Interval(-0.1, 0.1).direction
            (1, 0)
        """
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    @property
    def least(self) -> float:
        """How far from 0 it is at least.

        Example:
            >>> Interval(-0.5, -0.2).least, Interval(-0.5, 0.2).least
            (0.2, 0.0)
        """
        return max(self.low, -self.high, 0.0)


UNKNOWN = Interval(-math.inf, math.inf)
"""What too few numbers tell."""


@lru_cache(maxsize=4096)
def median_ranks(count: int, error: float) -> tuple[int, int] | None:
    r"""Ranks of the order statistics between which the median lies, but for a probability of at most ``error``.

    Of N independent numbers the count below their distribution's median m is at most binomial (N, ½), and so is the
    count above. With k the largest rank for which P(Bin(N, ½) < k) ≤ error / 2,

    $$P\bigl(x_{(k)} \le m \le x_{(N + 1 - k)}\bigr) \ge 1 - \mathrm{error},$$

    whatever the distribution, continuous or not.

    Args:
        count: N.
        error: Above 0 and below 1.

    Returns:
        k and N + 1 − k, from 1; None where N is too small for any two.

    Reference:
        W. R. Thompson, On confidence ranges for the median and other expectation distributions, 1936.

    Example:
        >>> median_ranks(10, 0.05), median_ranks(5, 0.05)
        ((2, 9), None)
    """
    from scipy.stats import binom

    if count < 1:
        return None
    rank = int(binom.ppf(error / 2, count, 0.5))  # the least rank whose probability is at least error / 2
    while rank > 0 and binom.cdf(rank - 1, count, 0.5) > error / 2:
        rank -= 1
    return (rank, count + 1 - rank) if rank else None


def difference(first: Interval, second: Interval) -> Interval:
    """Where the second median minus the first lies, if each lies in its interval.

    If either misses its median with probability at most ε, this one misses the difference with at most 2ε, however the
    two samples depend on each other: two models that read the same text need not be independent.

    Example:
        >>> difference(Interval(0.25, 0.5), Interval(0.75, 1.0))
        Interval(low=0.25, high=0.75)
    """
    low = -math.inf if math.isinf(first.high) else second.low - first.high
    high = math.inf if math.isinf(second.high) else second.high - first.low
    return Interval(low, high)
