"""The plots of the page: distributions, a heat map and scatter plots, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind
from fenchel.auditing.report.findings import Findings
from fenchel.drawing import level, short

if TYPE_CHECKING:
    from fenchel.auditing.swap_effects import SwapEffects

BINS = 25


@dataclass(frozen=True)
class Axis:
    """The range over which a metric's distribution is drawn; what lies above is counted in the last bin."""

    metric: str
    upper: float


AXES: tuple[Axis, ...] = (
    Axis("relative_deviation", 0.5),
    Axis("total_variation", 1.0),
    Axis("mean_error", 1.0),
)


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


def _position(value: float, axis: Axis) -> float | None:
    return round(min(100.0, 100 * value / axis.upper), 2) if math.isfinite(value) else None


def _panel(axis: Axis, layer: int, head: int | None, counts: Sequence[int], mean: float) -> Panel:
    queries = sum(counts)
    path = outline([count / queries if queries else 0.0 for count in counts])
    return Panel(layer, head, path, _position(mean, axis), short(mean), queries)


def panels(
    findings: Findings, axis: Axis
) -> dict[Kind, tuple[list[Panel], list[tuple[int, list[Panel | None]]]]]:
    """By kind one panel a layer, as in figure 4, and one a head, a row a layer, as in figure 5.

    Where a layer lacks a head, its row has None.
    """
    statistics = findings.statistics
    counts = statistics.histograms(axis.metric, axis.upper, BINS)
    result = {}
    for kind in findings.kinds:
        of_layers, rows = [], []
        for layer in findings.layers(kind):
            own = {key.head: counts[key] for key in counts if (key.kind, key.layer) == (kind, layer)}
            together = [sum(column) for column in zip(*own.values(), strict=True)]
            of_layers.append(_panel(axis, layer, None, together, statistics.mean(axis.metric, kind, layer)))
            of_heads = {
                head: _panel(axis, layer, head, its, statistics.mean(axis.metric, kind, layer, head))
                for head, its in own.items()
            }
            rows.append((layer, [of_heads.get(number) for number in findings.head_numbers(kind)]))
        result[kind] = of_layers, rows
    return result


def strips(findings: Findings, axis: Axis, kind: Kind) -> list[dict[str, Any]]:
    """One strip a layer, for models with too many heads for a panel each.

    Returns:
        Of each ``layer`` the means of its heads as ticks on a line of length 100 (``path``), and their ``mean`` with
        its place (``mean_at``).
    """
    drawn = []
    for layer in findings.layers(kind):
        means = [head.value(axis.metric) for head in findings.of_kind(kind) if head.key.layer == layer]
        ticks = sorted({place for mean in means if (place := _position(mean, axis)) is not None})
        average = findings.statistics.mean(axis.metric, kind, layer)
        path = "".join(f"M{place:g} 15V85" for place in ticks)
        place, mean = _position(average, axis), short(average)
        drawn.append({"layer": layer, "path": path, "mean_at": place, "mean": mean})
    return drawn


HEAT_METRICS: tuple[str, ...] = ("relative_deviation", "total_variation", "mean_error", "certificate")


@dataclass(frozen=True)
class Cell:
    """One head.

    Args:
        index: Its place among all heads of the report.
        style: The CSS class of its colour: a step of the scale, or ``unbounded``.
        text: Its number.
    """

    index: int
    style: str
    text: str


@dataclass(frozen=True)
class HeadGrid:
    """Layers by heads.

    Args:
        heads: The numbers of the columns.
        rows: A layer's number and its cells; None where a layer lacks that head.
        highest: The upper end of the colour scale; None where no number is finite.
    """

    heads: list[int]
    rows: list[tuple[int, list[Cell | None]]]
    highest: float | None

    @classmethod
    def of(cls, cells: Mapping[tuple[int, int], Cell], highest: float | None) -> HeadGrid:
        """The grid of cells by layer and head."""
        heads = sorted({head for _, head in cells})
        layers = sorted({layer for layer, _ in cells})
        return cls(
            heads, [(layer, [cells.get((layer, head)) for head in heads]) for layer in layers], highest
        )

    @property
    def width(self) -> str:
        """How wide the map is, as the CSS class that decides when its numbers are shown."""
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        """How tall the map is, as the CSS class of its rows."""
        return "low" if len(self.rows) <= 16 else "tall"


@dataclass(frozen=True)
class HeatMap(HeadGrid):
    """One metric of one kind of attention, on a scale that all kinds share.

    Args:
        kind: The kind.
        metric: The metric.
        statistic: What is shown of it: its mean, or its median where some head's mean is unbounded.
    """

    kind: Kind
    metric: str
    statistic: str


def highest_finite(values: Iterable[float | None]) -> float | None:
    """The greatest finite value; None where there is none."""
    return max((v for v in values if v is not None and math.isfinite(v)), default=None)


def _style(value: float, highest: float | None) -> str:
    if math.isinf(value) or highest is None:
        return "unbounded"
    return f"q{level(value, highest)}"


def heat_maps(findings: Findings, kind: Kind) -> list[HeatMap]:
    """The heat maps of one kind, one a metric."""
    place = {head.key: index for index, head in enumerate(findings.heads)}
    maps = []
    for metric in HEAT_METRICS:
        statistic = findings.shown_statistic(metric)
        highest = highest_finite(head.value(metric, statistic) for head in findings.heads)
        cells = {}
        for head in findings.of_kind(kind):
            value = head.value(metric, statistic)
            cells[head.key.layer, head.key.head] = Cell(place[head.key], _style(value, highest), short(value))
        grid = HeadGrid.of(cells, highest)
        maps.append(HeatMap(grid.heads, grid.rows, highest, kind, metric, statistic))
    return maps


_METRICS = ("total_variation", "relative_deviation")


def scatters(effects: SwapEffects) -> list[dict[str, Any]]:
    """Total variation and relative deviation against the change of the model's hidden states.

    Returns:
        Of each ``metric`` a point a head (``points``), what the ends of the axes stand for (``widest``, ``highest``)
        and Spearman's ``rank_correlation``. Of a point its ``key``, ``deviation`` and ``effect``, and the places of
        these and of the interval, from 0 to 100 (``x``, ``y``, ``low``, ``high``).
    """
    return [made for metric in _METRICS if (made := _scatter(effects, metric)) is not None]


def _scatter(effects: SwapEffects, metric: str) -> dict[str, Any] | None:
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
        {
            "key": head.key,
            "deviation": deviation,
            "effect": head.effect,
            "x": round(100 * deviation / widest, 2),
            "y": up(head.effect),
            "low": up(head.low),
            "high": up(head.high),
        }
        for head, deviation in known
    ]
    rank = effects.rank_correlation.get(metric)
    return {
        "metric": metric,
        "points": points,
        "widest": widest,
        "highest": highest,
        "rank_correlation": rank,
    }


def _end(values: Sequence[float]) -> float:
    return 1.05 * max(values) or 1.0
