"""The report in a notebook: a heat map and a small table without scripts, links or style sheets."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from fenchel.auditing.report.findings import KIND_NAMES, Findings
from fenchel.auditing.report.headline import summary_sentence
from fenchel.auditing.report.notebook_map import notebook_map
from fenchel.auditing.report.table import COLUMNS
from fenchel.drawing import count, short

if TYPE_CHECKING:
    from fenchel.auditing.results import AuditResults

__all__ = ["notebook_html"]

_MOST_LAYERS = 60
_LEFT = 'style="text-align:left;padding:.1em .6em"'
_RIGHT = 'style="text-align:right;padding:.1em .6em"'


def notebook_html(report: AuditResults) -> str:
    """How far every head is from exact, and the means of every layer, as HTML that needs nothing but itself.

    Args:
        report: The audit; its texts are escaped.

    Returns:
        A ``div``.
    """
    if not report.heads:
        return "<div><p>An audit without a head: nothing has been measured.</p></div>"
    findings = Findings.of(report)
    header = "".join(
        f'<th scope="col" {_RIGHT}>{words}</th>' for words in ("Layer", *COLUMNS.values(), "Queries")
    )
    rows = []
    for kind in findings.kinds:
        for i, layer in enumerate(findings.layers(kind)):
            heads = [head for head in findings.of_kind(kind) if head.key.layer == layer]
            numbers = [str(layer), *(short(findings.mean(metric, heads)) for metric in COLUMNS)]
            numbers.append(count(sum(head.queries for head in heads)))
            cells = "".join(f"<td {_RIGHT}>{number}</td>" for number in numbers)
            name = KIND_NAMES[kind] if i == 0 else ""
            rows.append(f"<tr><td {_LEFT}>{name}</td>{cells}</tr>")
    left_out = len(rows) - _MOST_LAYERS
    note = f"<p>{left_out} more layers are in the report.</p>" if left_out > 0 else ""
    maps = "".join(notebook_map(findings, kind) for kind in findings.kinds)
    return (
        f"<div><p>{escape(summary_sentence(report))}</p>{maps}"
        f'<table><thead><tr><th scope="col" {_LEFT}>Means over queries</th>{header}</tr>'
        f"</thead><tbody>{''.join(rows[:_MOST_LAYERS])}</tbody></table>{note}</div>"
    )
