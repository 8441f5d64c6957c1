"""Small multiples of distributions: the panels of figures 4 and 5 as SVG paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import Kind
from fenchel.auditing.report.distribution import Axis, distribution
from fenchel.auditing.report.findings import Findings
from fenchel.drawing import short

if TYPE_CHECKING:
    from fenchel.auditing.statistics import AuditStatistics

__all__ = ["MOST_PANELS", "Panel", "Strip", "head_panels", "layer_panels", "outline", "strips"]

MOST_PANELS = 400
"""Above this many heads of a kind, a layer's heads share one strip instead of having a panel each."""


@dataclass(frozen=True)
class Panel:
    """One distribution in a box of 100 by 100.

    Args:
        layer: The layer.
        head: The head, or None for all heads of the layer.
        path: The outline of the bars.
        mean_at: Where the mean's line stands, from 0 to 100; None where there is no finite mean.
        mean: The mean, written.
        queries: How many queries the distribution counts.
    """

    layer: int
    head: int | None
    path: str
    mean_at: float | None
    mean: str
    queries: int


@dataclass(frozen=True)
class Strip:
    """The means of a layer's heads as ticks on one line of length 100."""

    layer: int
    path: str
    mean_at: float | None
    mean: str


def outline(fractions: Sequence[float]) -> str:
    """The outline of bars of equal width, as an SVG path in a box of 100 by 100 whose y runs downwards.

    Example:
        >>> outline([0.5, 0.5, 0.0, 0.0])
        'M0 100V50H50V100H100V100Z'
    """
    steps = ["M0 100"]
    width = 100 / len(fractions)
    previous = None
    for i, fraction in enumerate(fractions):
        height = f"{100 - 100 * fraction:.4g}"
        if height != previous:
            if i:
                steps.append(f"H{i * width:.4g}")
            steps.append(f"V{height}")
            previous = height
    return "".join(steps) + "H100V100Z"


def _position(value: float | None, axis: Axis) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(min(100.0, 100 * value / axis.upper), 2)


def _panel(statistics: AuditStatistics, axis: Axis, kind: Kind, layer: int, head: int | None) -> Panel:
    shape = distribution(statistics, axis, kind, layer, head)
    return Panel(
        layer, head, outline(shape.fractions), _position(shape.mean, axis), short(shape.mean), shape.queries
    )


def layer_panels(statistics: AuditStatistics, findings: Findings, axis: Axis, kind: Kind) -> list[Panel]:
    """One panel a layer, as in figure 4."""
    return [_panel(statistics, axis, kind, layer, None) for layer in findings.layers(kind)]


def head_panels(
    statistics: AuditStatistics, findings: Findings, axis: Axis, kind: Kind
) -> list[tuple[int, list[Panel | None]]]:
    """One panel a head, a row a layer, as in figure 5; None where a layer lacks that head."""
    present = {(head.key.layer, head.key.head) for head in findings.of_kind(kind)}
    return [
        (
            layer,
            [
                _panel(statistics, axis, kind, layer, number) if (layer, number) in present else None
                for number in findings.head_numbers(kind)
            ],
        )
        for layer in findings.layers(kind)
    ]


def strips(findings: Findings, axis: Axis, kind: Kind) -> list[Strip]:
    """One strip a layer, for models with too many heads for a panel each."""
    drawn = []
    for layer in findings.layers(kind):
        means = [head.value(axis.metric) for head in findings.of_kind(kind) if head.key.layer == layer]
        ticks = sorted({place for mean in means if (place := _position(mean, axis)) is not None})
        average = findings.layer_mean(axis.metric, kind, layer)
        path = "".join(f"M{place:g} 15V85" for place in ticks)
        drawn.append(Strip(layer, path, _position(average, axis), short(average)))
    return drawn
