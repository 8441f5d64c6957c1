"""Means over seeds with intervals, for the examples that compare."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean, half the width of its 95 % interval by Student's t (None for one seed), and how many seeds."""

    mean: float
    half_width: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values, one a seed."""
    count, half = len(values), None
    if count > 1:
        half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * stats.sem(values))
    return Interval(float(np.mean(values)), half, count)


def shown(values: Sequence[float], digits: str = ".2f") -> str:
    """A mean and half the width of its interval, with as many digits."""
    result = interval(values)
    half = "(one seed)" if result.half_width is None else f"± {result.half_width:{digits}}"
    return f"{result.mean:{digits}} {half}"
