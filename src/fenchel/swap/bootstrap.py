"""Paired bootstrap: every arm is looked at on the same resamples of the same units.

``scipy.stats.bootstrap`` draws other resamples from the same seed, so published intervals would move, and gives none
where the statistic is undefined in one resample, such as a correlation with a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Bootstrap", "Interval"]

_ELEMENTS_AT_ONCE = 500_000
_LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval.

    Attributes:
        estimate: From the sample itself.
        low: 2.5 % of the resamples are below; None where no interval can be given.
        high: 2.5 % of the resamples are above; None likewise.
    """

    estimate: float
    low: float | None = None
    high: float | None = None


Statistic = Callable[[Tensor], Tensor]
"""From (R, N) weights of the units in R samples to R numbers."""


@dataclass(frozen=True)
class Bootstrap:
    """Resamples of N units with replacement, the same ones whenever they are asked for.

    Attributes:
        repetitions: How many resamples.
        seed: Of their random numbers.
    """

    repetitions: int = 2000
    seed: int = 0

    def samples(self, statistic: Statistic, strata: list[Tensor], units: int) -> Tensor:
        """A statistic of every resample.

        Args:
            statistic: What to compute.
            strata: Groups of unit numbers, each resampled for itself; one group is the usual bootstrap.
            units: N.

        Returns:
            (``repetitions``,) float64.
        """
        return torch.cat([statistic(weights) for weights in self._weights(strata, units)])

    def interval(self, statistic: Statistic, units: int, strata: list[Tensor] | None = None) -> Interval:
        """A statistic of the units with its percentile interval; without one where fewer than two units are in a group.

        Args:
            statistic: What to compute.
            units: N.
            strata: As in ``samples``. Default: one group.
        """
        strata = [torch.arange(units)] if strata is None else strata
        estimate = float(statistic(torch.ones(1, units, dtype=torch.float64)))
        if self.repetitions == 0 or min(map(len, strata)) < 2:
            return Interval(estimate)
        return self.around(estimate, self.samples(statistic, strata, units))

    @staticmethod
    def around(estimate: float, samples: Tensor) -> Interval:
        """The percentile interval of resampled values. Resamples in which the statistic is not defined are left out."""
        defined = samples[samples.isfinite()]
        if not len(defined):
            return Interval(estimate)
        tail = (1 - _LEVEL) / 2
        low, high = torch.quantile(defined, torch.tensor([tail, 1 - tail], dtype=defined.dtype)).tolist()
        return Interval(estimate, low, high)

    def _weights(self, strata: list[Tensor], units: int) -> Iterator[Tensor]:
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
