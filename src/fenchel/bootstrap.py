"""Bootstrap intervals, of swaps and of compared audits, and rank correlations of weighted resamples.

``scipy.stats.bootstrap`` draws other resamples from the same seed, so published intervals would change, and gives no
interval where the statistic is undefined in one resample, such as a correlation with a constant. ``spearmanr`` has no
weights, which a bootstrap of pairs of resampled sentences needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ELEMENTS_AT_ONCE = 500_000
_LEVEL = 0.95
# Minimum number of units of an interval; with two there are only three resamples.
FEWEST = 3
# Minimum number of units for a conclusion from a percentile interval, which covers less than 95 % with few units.
CONCLUSIVE = 10


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval.

    Attributes:
        estimate: The statistic of the sample.
        low: The lower end; None where no interval can be given.
        high: The upper end, or None.
    """

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def span(self) -> tuple[float, float | None, float | None]:
        """Estimate and ends."""
        return self.estimate, self.low, self.high

    @property
    def direction(self) -> int:
        """1 if the interval lies above 0, −1 if it lies below, else 0; 0 where there is no interval.

        Example:
            >>> Interval(0.2, 0.1, 0.3).direction, Interval(0.0, -0.1, 0.1).direction, Interval(0.2).direction
            (1, 0, 0)
        """
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    @property
    def least(self) -> float:
        """The distance of the interval from 0.

        Example:
            >>> Interval(-0.3, -0.5, -0.2).least, Interval(-0.3, -0.5, 0.2).least, Interval(-0.3).least
            (0.2, 0.0, 0.0)
        """
        return 0.0 if self.low is None or self.high is None else max(self.low, -self.high, 0.0)

    def widened(self, by: float) -> Interval:
        """The interval with its ends moved apart, each by a length."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.estimate, self.low - by, self.high + by)


# Takes weights of the units in R samples, (R, N); returns R numbers, or (R, ...) for several at once.
Statistic = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Bootstrap:
    """Resamples of N units with replacement, the same ones whenever they are asked for.

    Attributes:
        repetitions: Number of resamples.
        seed: Seed of their random numbers.
    """

    repetitions: int = 2000
    seed: int = 0

    def samples(self, statistic: Statistic, strata: Sequence[Tensor], units: int) -> Tensor:
        """A statistic of every resample.

        Args:
            statistic: The statistic.
            strata: Groups of unit numbers, each resampled separately; one group is the usual bootstrap.
            units: N.

        Returns:
            (``repetitions``, ...) float64.
        """
        return torch.cat([statistic(weights) for weights in self._weights(strata, units)])

    def interval(self, statistic: Statistic, units: int, strata: Sequence[Tensor] | None = None) -> Interval:
        """A statistic of the units with its percentile interval, if there are three units or more.

        Args:
            statistic: The statistic.
            units: N.
            strata: As in ``samples``. Default: one group.
        """
        strata = [torch.arange(units)] if strata is None else strata
        estimate = float(statistic(torch.ones(1, units, dtype=torch.float64)))
        if min(map(len, strata)) < FEWEST:
            return Interval(estimate)
        return self.around(estimate, self.samples(statistic, strata, units))

    @staticmethod
    def around(estimate: float, samples: Tensor) -> Interval:
        """The percentile interval of resampled values, without resamples in which the statistic is undefined."""
        defined = samples[samples.isfinite()]
        if not len(defined):
            return Interval(estimate)
        tail = (1 - _LEVEL) / 2
        low, high = torch.quantile(defined, torch.tensor([tail, 1 - tail], dtype=defined.dtype)).tolist()
        return Interval(estimate, low, high)

    @staticmethod
    def together(estimates: Tensor, samples: Tensor, units: int) -> list[Interval]:
        r"""Intervals that hold simultaneously with probability 0.95.

        With :math:`s_h` the standard deviation of the resampled values of number h and c the 95 % quantile, over the
        resamples, of the largest :math:`|\theta^*_h - \theta_h| / s_h`, the intervals are
        :math:`\theta_h \pm c' s_h`. A single one has c near 1.96. c' is c of Student's distribution in place of the
        normal one, times :math:`\sqrt{D / (D - 1)}`: few units are more alike than their population.

        Args:
            estimates: Statistics of the sample, (H,).
            samples: Statistics of the resamples, (R, H).
            units: D, the number of units in the smallest group.

        Returns:
            H intervals; without ends for fewer than three units, and where a number is not finite in every resample.
        """
        from scipy.stats import norm, t

        finite = estimates.isfinite() & samples.isfinite().all(0)
        if units < FEWEST or not bool(finite.any()):
            return [Interval(value) for value in estimates.tolist()]
        apart = (samples - estimates)[:, finite]
        spread = apart.square().mean(0).sqrt()
        farthest = torch.where(spread > 0, apart.abs() / spread, 0.0).amax(1)
        times = max(float(torch.quantile(farthest, _LEVEL)), float(norm.ppf((1 + _LEVEL) / 2)))
        times = float(t.isf(norm.sf(times), units - 1)) * math.sqrt(units / (units - 1))
        width = torch.full_like(estimates, math.nan)
        width[finite] = times * spread
        return [
            Interval(value) if wide != wide else Interval(value, value - wide, value + wide)
            for value, wide in zip(estimates.tolist(), width.tolist(), strict=True)
        ]

    def _weights(self, strata: Sequence[Tensor], units: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        block = max(1, _ELEMENTS_AT_ONCE // units)
        for begin in range(0, self.repetitions, block):
            rows = min(block, self.repetitions - begin)
            weights = torch.zeros(units, rows, dtype=torch.float64)
            for members in strata:
                size = len(members)
                drawn = members[torch.randint(size, (size, rows), generator=generator)]
                weights.scatter_add_(0, drawn, torch.ones(size, rows, dtype=torch.float64))
            yield weights.T


# Minimum number of values of a rank correlation.
_FEWEST_RANKS = 3


def midranks(values: Tensor, weights: Tensor) -> Tensor:
    """Ranks from 1 in a sample that holds each value as often as its weight says; equal values share their average.

    A resample with replacement is the same values with other weights, so the values are sorted once for all of them.

    Args:
        values: (N,).
        weights: Number of times that each of R samples holds each value, (R, N).

    Returns:
        The rank that a value has, or would have, in each sample, (R, N) float64.

    Example:
        >>> midranks(torch.tensor([30.0, 10.0, 10.0]), torch.ones(1, 3)).tolist()
        [[3.0, 1.5, 1.5]]
    """
    group = values.unique(return_inverse=True)[1]
    # One sample in each column, so that whole rows are added, which is several times faster.
    held = weights.to(torch.float64).T
    count = held.new_zeros(int(group.max()) + 1, held.shape[1]).index_add_(0, group, held)
    return count.cumsum(0).sub_(count.sub_(1).div_(2))[group].T


def correlation(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Pearson's correlation of x and y in each of R weighted samples.

    Args:
        x: (R, N) or (N,).
        y: (R, N) or (N,).
        weights: (R, N), at least 0.

    Returns:
        (R,) float64; NaN where x or y is constant in a sample.
    """
    weights = weights.to(torch.float64)
    total = weights.sum(1, keepdim=True)
    x = x - (weights * x).sum(1, keepdim=True) / total
    y = y - (weights * y).sum(1, keepdim=True) / total
    spread = (weights * x * x).sum(1) * (weights * y * y).sum(1)
    return torch.where(spread > 0, (weights * x * y).sum(1) / spread.sqrt(), torch.nan)


def spearman(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Spearman's rank correlation, the correlation of average ranks.

    Args:
        x: (N,).
        y: (N,).
        weights: Number of times that each of R samples holds each pair, (R, N). Default: one sample with each once.

    Returns:
        (R,) float64; NaN where x or y is constant in a sample.

    Reference:
        C. Spearman, The proof and measurement of association between two things, 1904.

    Example:
        >>> round(float(spearman(torch.tensor([1.0, 2.0, 2.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))), 4)
        0.9487
    """
    weights = torch.ones(1, len(x), dtype=torch.float64) if weights is None else weights
    return correlation(midranks(x, weights), midranks(y, weights), weights)


def rank_correlation(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Spearman's rank correlation of pairs in which both are known; None for fewer than three, or where it is NaN.

    Example:
        >>> rank_correlation([(1.0, 2.0), (2.0, 3.0), (4.0, 9.0), (math.nan, 1.0)]), rank_correlation([(1.0, 2.0)])
        (1.0, None)
    """
    known = [pair for pair in pairs if not any(one is None or math.isnan(one) for one in pair)]
    if len(known) < _FEWEST_RANKS:
        return None
    result = float(spearman(*torch.tensor(known, dtype=torch.float64).T))
    return None if math.isnan(result) else result
