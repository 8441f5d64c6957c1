"""Is a change more than smoothing? An arm against the best of the controls, which are first order at other α.

The control is chosen by the same measure as it is compared by, so choosing and comparing on the same units would
flatter it. The units are split into two halves at random; the control for each half is chosen on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.swap.bootstrap import Bootstrap, Interval
from fenchel.swap.metric import AbstractMetric

__all__ = ["AgainstControl", "against_best_control", "halves"]


@dataclass(frozen=True)
class AgainstControl:
    """An arm against the best control.

    Attributes:
        chosen: The control chosen for each half on the other; empty where there are too few units to split.
        best: The best control on all units, for reading only.
        compared: Mean over the halves of the arm's metric minus that of the control chosen for the half, or of the
            control's alone, with an interval; None where there are too few units.
    """

    chosen: tuple[str, ...]
    best: str
    compared: Interval | None


def halves(units: int, seed: int) -> list[Tensor]:
    """The unit numbers in two random halves, each in order."""
    order = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    return [order[0::2].sort().values, order[1::2].sort().values]


def _best(metric: AbstractMetric, controls: Sequence[str], weights: Tensor) -> str:
    values = [float(metric(control, weights)) for control in controls]
    sign = 1 if metric.lower_is_better else -1
    # An undefined value (all similarities equal) is never the best.
    return min(
        zip(controls, values, strict=True),
        key=lambda pair: sign * pair[1] if pair[1] == pair[1] else float("inf"),
    )[0]


def against_best_control(
    metric: AbstractMetric, arm: str | None, controls: Sequence[str], bootstrap: Bootstrap
) -> AgainstControl:
    """Compare an arm with the best control, chosen on one half of the units and compared on the other, both ways.

    Args:
        metric: What is compared.
        arm: The arm; None to look at the chosen controls' metric itself.
        controls: The controls, at least one.
        bootstrap: Resamples each half for itself; the choice stays as it is, so the interval says nothing about the
            choice's own uncertainty.

    Returns:
        The comparison.
    """
    everything = torch.ones(1, metric.units, dtype=torch.float64)
    best = _best(metric, controls, everything)
    split = halves(metric.units, bootstrap.seed)
    if min(map(len, split)) < 2:
        return AgainstControl((), best, None)
    inside = [torch.zeros(metric.units, dtype=torch.float64).index_fill_(0, half, 1.0) for half in split]
    chosen = tuple(_best(metric, controls, other[None]) for other in reversed(inside))

    def difference(weights: Tensor) -> Tensor:
        found = []
        for members, control in zip(inside, chosen, strict=True):
            value = metric(control, weights * members)
            found.append(value if arm is None else metric(arm, weights * members) - value)
        return torch.stack(found).mean(0)

    return AgainstControl(chosen, best, bootstrap.interval(difference, metric.units, split))
