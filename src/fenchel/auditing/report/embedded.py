"""The numbers that the page's script reads, as JSON that cannot end the element it stands in."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from fenchel.auditing.heads import METRICS
from fenchel.auditing.report.distribution import AXES
from fenchel.auditing.report.findings import (
    KIND_NAMES,
    METRIC_NAMES,
    SHORT_KIND_NAMES,
    STANDARD_ERROR,
    STATISTICS,
    Findings,
)
from fenchel.auditing.report.opened import KIND_PREFIXES, opened_data

if TYPE_CHECKING:
    from fenchel.auditing.results import AuditResults

__all__ = ["embedded_json", "page_data"]

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


PLACES: dict[str, str] = {
    "first": "the first token",
    "special": "special tokens",
    "itself": "the query itself",
    "neighbour": "its neighbours",
    "punctuation": "punctuation",
    "rest": "other tokens",
}
"""What the page calls the places that weight moves between."""

PLACES_OF_IMAGES: dict[str, str] = {"first": "the first position", "rest": "other patches"}
"""The same where the input is images."""


def embedded_json(data: object) -> str:
    r"""JSON to stand inside a ``script`` element: no text in it can end the element or start another.

    Example:
        >>> embedded_json({"model": "</script>"})
        '{"model":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _number(value: float | None) -> float | str | None:
    if value is None:
        return None
    return "inf" if math.isinf(value) else float(f"{value:.6g}")


def page_data(report: AuditResults, findings: Findings, *, most_rows: int) -> dict[str, Any]:
    """Every head's numbers, a row a head, with the names of the columns, and what a head shows when it is opened.

    Args:
        report: The audit.
        findings: Its heads.
        most_rows: How many rows of the table the page shows before it is asked for all.
    """
    columns = ["kind", "layer", "head", "queries", "not_converged", "newton_steps"]
    metrics_from = len(columns)
    columns += [f"{metric}_{statistic}" for metric in METRICS for statistic in STATISTICS]
    rows = []
    for head in findings.heads:
        row: list[object] = [findings.kinds.index(head.key.kind), head.key.layer, head.key.head]
        row += [head.queries, head.not_converged, _number(head.newton_steps)]
        row += [_number(head.value(metric, statistic)) for metric in METRICS for statistic in STATISTICS]
        rows.append(row)
    return {
        "kinds": [KIND_NAMES[kind] for kind in findings.kinds],
        "short_kinds": [SHORT_KIND_NAMES[kind] for kind in findings.kinds],
        "metrics": METRIC_NAMES,
        "statistics": STATISTICS,
        "kind_prefixes": [KIND_PREFIXES[kind] for kind in findings.kinds],
        "places": PLACES | (PLACES_OF_IMAGES if report.manifest.get("reads") == "images" else {}),
        "reads": report.manifest.get("reads", "text"),
        "axes": [axis.metric for axis in AXES],
        "columns": columns,
        "metrics_from": metrics_from,
        "most_rows": most_rows,
        "rows": rows,
        "sampled": [
            [head.population, *(_number(head.value(metric, STANDARD_ERROR)) for metric in METRICS)]
            for head in findings.heads
        ]
        if report.manifest.get("queries")
        else None,
        **opened_data(report, findings),
    }
