"""Layers by heads, one colour a cell: the rows of the page's heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fenchel.auditing.heads import Kind
from fenchel.auditing.report.findings import Findings
from fenchel.drawing import level, short

__all__ = ["HEAT_METRICS", "Cell", "HeatMap", "heat_maps", "highest_finite"]

HEAT_METRICS: tuple[str, ...] = ("relative_deviation", "total_variation", "mean_error", "certificate")


@dataclass(frozen=True)
class Cell:
    """One head.

    Args:
        index: Its place among all heads of the report.
        style: The CSS class of its colour: a step of the scale, ``unbounded`` or ``missing``.
        text: Its number.
    """

    index: int
    style: str
    text: str


@dataclass(frozen=True)
class HeatMap:
    """One metric of one kind of attention.

    Args:
        kind: The kind.
        metric: The metric.
        statistic: What is shown of it: its mean, or its median where some head's mean is unbounded.
        heads: The numbers of the columns.
        rows: A layer's number and its cells; None where a layer lacks that head.
        highest: The upper end of the colour scale, which all kinds share; None where no number is finite.
    """

    kind: Kind
    metric: str
    statistic: str
    heads: list[int]
    rows: list[tuple[int, list[Cell | None]]]
    highest: float | None

    @property
    def width(self) -> str:
        """How wide the map is, as the CSS class that decides when its numbers are shown."""
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        """How tall the map is, as the CSS class of its rows."""
        return "low" if len(self.rows) <= 16 else "tall"


def highest_finite(values: Iterable[float | None]) -> float | None:
    """The greatest finite value; None where there is none."""
    return max((v for v in values if v is not None and math.isfinite(v)), default=None)


def _style(value: float | None, highest: float | None) -> str:
    if value is None:
        return "missing"
    if math.isinf(value) or highest is None:
        return "unbounded"
    return f"q{level(value, highest)}"


def heat_maps(findings: Findings, kind: Kind) -> list[HeatMap]:
    """The heat maps of one kind, one a metric."""
    place = {head.key: index for index, head in enumerate(findings.heads)}
    cells = {(head.key.layer, head.key.head): head for head in findings.of_kind(kind)}
    columns = findings.head_numbers(kind)
    maps = []
    for metric in HEAT_METRICS:
        statistic = findings.shown_statistic(metric)
        highest = highest_finite(head.value(metric, statistic) for head in findings.heads)
        rows: list[tuple[int, list[Cell | None]]] = []
        for layer in findings.layers(kind):
            row: list[Cell | None] = []
            for number in columns:
                head = cells.get((layer, number))
                if head is None:
                    row.append(None)
                    continue
                value = head.value(metric, statistic)
                row.append(Cell(place[head.key], _style(value, highest), short(value)))
            rows.append((layer, row))
        maps.append(HeatMap(kind, metric, statistic, columns, rows, highest))
    return maps
