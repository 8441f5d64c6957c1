"""The numbers that the page's script reads, as JSON that cannot end the element it stands in."""

from __future__ import annotations

import json
import math
from typing import Any

from fenchel.auditing.heads import METRICS
from fenchel.auditing.report.findings import KIND_NAMES, METRIC_NAMES, SHORT_KIND_NAMES, STATISTICS, Findings

__all__ = ["embedded_json", "page_data"]

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


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


def page_data(findings: Findings, *, most_rows: int) -> dict[str, Any]:
    """Every head's numbers, a row a head, with the names of the columns.

    Args:
        findings: The heads.
        most_rows: How many rows of the table the page shows before it is asked for all.
    """
    columns = ["kind", "layer", "head", "queries", "not_converged", "newton_steps"]
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
        "columns": columns,
        "most_rows": most_rows,
        "rows": rows,
    }
