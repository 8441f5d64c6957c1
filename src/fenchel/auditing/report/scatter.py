"""How far each head's attention is off against what changes when it is not: one point a head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import HeadKey

if TYPE_CHECKING:
    from fenchel.auditing.swap_effects import SwapEffects

__all__ = ["Point", "Scatter", "scatters"]

_METRICS = ("total_variation", "relative_deviation")


@dataclass(frozen=True)
class Point:
    """One head; places run from 0 to 100, y upwards.

    Args:
        key: The head.
        x: Place of its deviation.
        y: Place of its effect.
        low: Lower end of the effect's interval; None where it has none.
        high: Upper end.
        deviation: The deviation.
        effect: The effect.
    """

    key: HeadKey
    x: float
    y: float
    low: float | None
    high: float | None
    deviation: float
    effect: float


@dataclass(frozen=True)
class Scatter:
    """One metric against the effect.

    Args:
        metric: The metric.
        points: A point a head.
        widest: The metric at the right end of the axis.
        highest: The effect at the upper end.
        rank_correlation: Spearman's; None where there is none.
    """

    metric: str
    points: list[Point]
    widest: float
    highest: float
    rank_correlation: float | None


def scatters(effects: SwapEffects) -> list[Scatter]:
    """Total variation and relative deviation against the change of the model's hidden states."""
    return [made for metric in _METRICS if (made := _scatter(effects, metric)) is not None]


def _scatter(effects: SwapEffects, metric: str) -> Scatter | None:
    known = [
        (head, deviation)
        for head in effects.heads
        if (deviation := head.deviations.get(metric)) is not None and math.isfinite(deviation)
    ]
    if not known:
        return None
    widest = _end([deviation for _, deviation in known])
    highest = _end([max(head.effect, head.high or 0.0) for head, _ in known])

    def up(value: float | None) -> float | None:
        return None if value is None else round(100 * max(0.0, min(1.0, value / highest)), 2)

    points = [
        Point(
            head.key,
            round(100 * deviation / widest, 2),
            up(head.effect) or 0.0,
            up(head.low),
            up(head.high),
            deviation,
            head.effect,
        )
        for head, deviation in known
    ]
    return Scatter(metric, points, widest, highest, effects.rank_correlation.get(metric))


def _end(values: Sequence[float]) -> float:
    return 1.05 * max(values) or 1.0
