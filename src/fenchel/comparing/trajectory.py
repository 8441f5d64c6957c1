"""How medians go from audit to audit: a panel a layer, a line a head, on an axis that all panels of a metric share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import Kind
from fenchel.drawing import short

if TYPE_CHECKING:
    from fenchel.comparing.comparison import Comparison

__all__ = ["Trajectories", "TrajectoryPanel", "path", "trajectories"]


@dataclass(frozen=True)
class TrajectoryPanel:
    """One layer in a box of 100 by 100.

    Attributes:
        layer: Its number.
        heads: The lines of its heads, as one SVG path.
        line: The line of the layer itself.
        values: What that line shows, written.
    """

    layer: int
    heads: str
    line: str
    values: list[str]


@dataclass(frozen=True)
class Trajectories:
    """A metric of a kind of attention.

    Attributes:
        metric: The metric.
        kind: The kind.
        highest: The upper end of the axis, which begins at 0.
        panels: One a layer.
    """

    metric: str
    kind: Kind
    highest: float
    panels: list[TrajectoryPanel]


def path(values: Sequence[float], highest: float) -> str:
    """An SVG path through values at equal distances, in a box of 100 by 100 whose y runs downwards.

    A value that is not finite, or beyond the axis, leaves a gap.

    Example:
        >>> path([0.0, 0.5, math.inf, 1.0, 0.5], 1.0)
        'M0 100L25 50M75 0L100 50'
    """
    steps, pen = [], "M"
    for place, value in enumerate(values):
        if not math.isfinite(value) or value > highest:
            pen = "M"
            continue
        x = 100 * place / (len(values) - 1)
        steps.append(f"{pen}{x:.4g} {100 - 100 * value / highest:.4g}")
        pen = "L"
    return "".join(steps)


def trajectories(comparison: Comparison, metrics: Iterable[str]) -> list[Trajectories]:
    """The medians of all layers and heads in every audit, by metric and kind."""
    audits = comparison.audits
    made = []
    for metric in metrics:
        medians = {key: [audit.heads[key][metric].median for audit in audits] for key in comparison.keys}
        finite = [value for values in medians.values() for value in values if math.isfinite(value)]
        highest = max(finite, default=0.0) or 1.0
        for kind in comparison.kinds:
            panels = []
            for site in comparison.sites:
                if site[0] != kind:
                    continue
                own = [audit.layers[site][metric].median for audit in audits]
                heads = [medians[key] for key in comparison.keys if (key.kind, key.layer) == site]
                panels.append(
                    TrajectoryPanel(
                        site[1],
                        "".join(path(values, highest) for values in heads),
                        path(own, highest),
                        [short(value) for value in own],
                    )
                )
            made.append(Trajectories(metric, kind, highest, panels))
    return made
