"""Numbers of a table with their intervals: a metric of an arm, and its difference from the model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.swap.bootstrap import Bootstrap, Interval
from fenchel.swap.metric import AbstractMetric

__all__ = ["Differences", "named"]

Record = dict[str, Any]


class Differences:
    """A metric of every arm and its difference from the model's, on the same resamples."""

    def __init__(self, metric: AbstractMetric | None, bootstrap: Bootstrap, model: str) -> None:
        self._metric, self._bootstrap, self._model = metric, bootstrap, model
        self._own: Tensor | None = None

    def _samples(self, arm: str) -> Tensor | None:
        metric = self._metric
        if metric is None or metric.units < 2 or self._bootstrap.repetitions == 0:
            return None
        return self._bootstrap.samples(
            lambda weights: metric(arm, weights), [torch.arange(metric.units)], metric.units
        )

    def record(self, name: str, arm: str) -> Record:
        """The metric of an arm under a name, and its difference from the model's."""
        if self._metric is None:
            return {}
        if self._own is None:
            self._own = self._samples(self._model)
        value, own = self._metric.of_all(arm), self._metric.of_all(self._model)
        samples = self._own if arm == self._model else self._samples(arm)
        if samples is None or self._own is None:
            level, difference = Interval(value), Interval(value - own)
        else:
            level = Bootstrap.around(value, samples)
            difference = Bootstrap.around(value - own, samples - self._own)
        return named(name, level) | named(f"{name}_difference", difference)


def named(name: str, interval: Interval | None) -> Record:
    """An estimate and the ends of its interval under a name, missing where they are not known."""
    values = (None, None, None) if interval is None else (interval.estimate, interval.low, interval.high)
    # An undefined value (a ranking of equal similarities) is missing: JSON knows no NaN.
    return {
        key: None if value is None or value != value else float(value)
        for key, value in zip((name, f"{name}_low", f"{name}_high"), values, strict=True)
    }
