"""A comparison as one self-contained page: no network, all text escaped, all numbers those of ``compare.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fenchel.auditing.heads import METRICS, Kind
from fenchel.auditing.report.findings import KIND_NAMES, METRIC_NAMES, SHORT_KIND_NAMES
from fenchel.auditing.report.html import embedded_json, page_environment, page_file, script_hash
from fenchel.comparing.audited import CONFIDENCE
from fenchel.comparing.diverging import STEPS, style, stylesheet
from fenchel.comparing.moved import moved_heads
from fenchel.comparing.table import METRIC, end
from fenchel.comparing.trajectory import trajectories
from fenchel.drawing import plain, short
from fenchel.swap.report import signed

if TYPE_CHECKING:
    from fenchel.comparing.comparison import Comparison

__all__ = ["render_html", "signed_short"]

_PACKAGE = "fenchel.comparing"
_REPORT = "fenchel.auditing.report"
_ORDER = (METRIC, *(metric for metric in METRICS if metric != METRIC))
_STATISTICS = {"p50": "median", "mean": "mean"}
_ENTRY_NAMES = {"texts": "text", "text_sha256": "SHA-256 of the text", "tol": "tolerance"}


@dataclass(frozen=True)
class _Cell:
    place: int
    style: str
    text: str


@dataclass(frozen=True)
class _Map:
    metric: str
    heads: list[int]
    rows: list[tuple[int, list[_Cell | None]]]
    highest: float | None

    @property
    def width(self) -> str:
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        return "low" if len(self.rows) <= 16 else "tall"


def signed_short(value: float | None) -> str:
    """A difference for a cell: its sign and three digits.

    Example:
        >>> [signed_short(v) for v in (0.0123, -1.5, 0.0, 0.0001, None)]
        ['+.012', '−1.50', '0', '+.000', '–']
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    written = short(abs(value))
    return ("+" if value > 0 else "−") + written.removeprefix("0")


def render_html(comparison: Comparison) -> str:
    """A comparison as one HTML page that needs no network.

    Args:
        comparison: The comparison. Its texts (names, models, texts) are escaped, whatever they hold.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    environment = page_environment(_PACKAGE)
    environment.filters.update(signed=signed, signed_short=signed_short)
    script = page_file(_PACKAGE, "compare.js")
    return environment.get_template("compare.html.jinja").render(
        comparison=comparison,
        first=comparison.first,
        last=comparison.last,
        metric=METRIC,
        metrics=_ORDER,
        metric_names=METRIC_NAMES,
        statistics=_STATISTICS,
        several_kinds=len(comparison.kinds) > 1,
        confidence=CONFIDENCE,
        differing=[
            (_entry_name(name), [_entry(v) for v in values]) for name, values in comparison.differing.items()
        ],
        maps=[(KIND_NAMES[kind], _maps(comparison, kind)) for kind in comparison.kinds],
        steps=range(STEPS, 0, -1),
        moved=[(metric, moved_heads(comparison, metric)) for metric in _ORDER],
        trajectories=trajectories(comparison, _ORDER) if len(comparison.audits) > 2 else [],
        kind_names=KIND_NAMES,
        style="".join(page_file(_REPORT, name) for name in ("report.css", "whiskers.css"))
        + page_file(_PACKAGE, "compare.css"),
        light_scale=stylesheet(dark=False),
        dark_scale=stylesheet(dark=True),
        script=script,
        script_hash=script_hash(script),
        data=embedded_json(_data(comparison)),
    )


def _maps(comparison: Comparison, kind: Kind) -> list[_Map]:
    place = {key: index for index, key in enumerate(comparison.keys)}
    keys = [key for key in comparison.keys if key.kind == kind]
    columns = sorted({key.head for key in keys})
    by_site = {(key.layer, key.head): key for key in keys}
    made = []
    for metric in _ORDER:
        highest = _highest(comparison, metric)
        rows: list[tuple[int, list[_Cell | None]]] = []
        for layer in sorted({key.layer for key in keys}):
            row: list[_Cell | None] = []
            for head in columns:
                key = by_site.get((layer, head))
                if key is None:
                    row.append(None)
                    continue
                change = comparison.changes[key][metric]
                moved = " moved" if change.interval.direction else ""
                row.append(
                    _Cell(place[key], style(change.median, highest) + moved, signed_short(change.median))
                )
            rows.append((layer, row))
        made.append(_Map(metric, columns, rows, highest))
    return made


def _highest(comparison: Comparison, metric: str) -> float | None:
    sizes = [
        abs(change)
        for key in comparison.keys
        if (change := comparison.changes[key][metric].median) is not None
    ]
    return max(sizes, default=None)


def _data(comparison: Comparison) -> dict[str, Any]:
    """What the page's script reads: a row a head, five numbers a metric."""
    rows = []
    for key in comparison.keys:
        changes = comparison.changes[key]
        numbers = [
            [
                *(_number(value) for value in (change.first.median, change.second.median)),
                *(_number(value) for value in (change.first.mean, change.second.mean)),
                _number(change.median),
                _number(change.mean),
                end(change.interval.low),
                end(change.interval.high),
                change.interval.direction,
            ]
            for change in (changes[metric] for metric in _ORDER)
        ]
        rows.append([SHORT_KIND_NAMES[key.kind], key.layer, key.head, numbers])
    return {
        "names": [comparison.first.name, comparison.last.name],
        "metrics": list(_ORDER),
        "metric_names": METRIC_NAMES,
        "steps": STEPS,
        "rows": rows,
    }


def _number(value: float | None) -> float | str | None:
    if value is None or math.isnan(value):
        return None
    return "inf" if math.isinf(value) else float(f"{value:.6g}")


def _entry_name(name: str) -> str:
    return _ENTRY_NAMES.get(name, name.replace("_", " "))


def _entry(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(value)
