"""An audit in a terminal and in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind
from fenchel.auditing.report.findings import (
    KIND_NAMES,
    METRIC_NAMES,
    SHORT_KIND_NAMES,
    STANDARD_ERROR,
    STATISTICS,
    Findings,
    model_name,
    summary_sentence,
)
from fenchel.auditing.report.plots import Cell, HeatMap, heat_maps
from fenchel.drawing import SCALE, count, ink, short, stacked, titled_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fenchel.auditing.state import AuditState

COLUMNS: dict[str, str] = {
    "total_variation": "Weight moved",
    "mean_error": "Output error",
    "relative_deviation": "Relative deviation",
    "predicted_deviation": "Predicted deviation",
    "certificate": "Deviation at most",
}

"""The metrics of the short tables and what heads their columns."""

_FARTHEST = 3


def terminal_table(report: AuditState) -> RenderableType:
    """A table of the means of every layer, followed by the heads that are farthest off, for rich.

    Args:
        report: The audit.

    Returns:
        Something that ``rich.print`` prints. Names and texts in it are never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
        InputError: If the report holds no head.
    """
    findings = Findings.of(report)
    kind_column = ("Kind",) if len(findings.kinds) > 1 else ()
    # Eighty columns have no room for the kinds and a bound.
    columns = {
        metric: words for metric, words in COLUMNS.items() if metric != "certificate" or not kind_column
    }

    def table(title: str, *columns: str) -> Table:
        made = titled_table(title)
        for words in columns:
            # Headers break between words and nothing else does, so that a table fits 80 columns.
            left = words == "Kind"
            made.add_column(words.replace(" ", "\n"), justify="left" if left else "right", no_wrap=True)
        return made

    sampled = report.sample
    name = f"Means over queries, {model_name(report.manifest)}"
    if sampled is not None:
        name += f"\n± standard error, from {sampled}"

    def written(found: Mapping[str, Any], metric: str) -> str:
        mean, error = found[f"{metric}_mean"], found[f"{metric}_{STANDARD_ERROR}"]
        if sampled is None:
            return short(mean)
        return f"{short(mean)}\n{f'±{error:.1g}' if math.isfinite(error) else ''}"

    layers = table(name, *kind_column, "Layer", *columns.values(), "Queries")
    for kind in findings.kinds:
        numbers = findings.layers(kind)
        for i, layer in enumerate(numbers):
            found = report.statistics.of(kind, layer)
            layers.add_row(
                *([SHORT_KIND_NAMES[kind] if i == 0 else ""] if kind_column else []),
                str(layer),
                *(written(found, metric) for metric in columns),
                count(found["queries"]),
                end_section=i == len(numbers) - 1,
            )
    title = "Heads in which most weight would move"
    farthest = table(title, *kind_column, "Layer", "Head", *columns.values())
    for head in findings.farthest("total_variation", _FARTHEST):
        farthest.add_row(
            *([SHORT_KIND_NAMES[head.key.kind]] if kind_column else []),
            str(head.key.layer),
            str(head.key.head),
            *(written(head.numbers, metric) for metric in columns),
        )
    parts: list[Any] = [layers, farthest]
    if findings.not_converged:
        parts.append(
            (
                f"{count(findings.not_converged)} of {count(findings.problems)} problems did not converge: "
                + ", ".join(_missed(findings)),
                "bold red",
            )
        )
    return stacked(*parts)


def _missed(findings: Findings) -> list[str]:
    return [
        f"{SHORT_KIND_NAMES[kind].lower()} {count(missed)}"
        for kind in findings.kinds
        if (missed := findings.statistics.of(kind)["not_converged"])
    ]


_METRIC = "total_variation"

_MOST_CELLS = 2_000

_FEW = 16  # heads beside each other in which numbers can be read

_TABLE = 'style="border-collapse:separate;border-spacing:1px;font-size:11px;line-height:1.2;margin:.3em 0"'

_LABEL = 'style="padding:0 .4em;text-align:right;font-weight:normal;opacity:.7"'

_UNBOUNDED = "#dde1e8", "#10131a"


def notebook_map(findings: Findings, kind: Kind) -> str:
    """Layers by heads of one kind, coloured by the weight that would have to move, as in the report.

    Args:
        findings: The heads.
        kind: The kind of attention.

    Returns:
        A ``table`` with a caption; for more than 2,000 heads a sentence that says where the map is.
    """
    name = f"{SHORT_KIND_NAMES[kind]}, " if len(findings.kinds) > 1 else ""
    if len(findings.of_kind(kind)) > _MOST_CELLS:
        return f"<p>{escape(name)}{METRIC_NAMES[_METRIC].lower()} by head: the map is in report.html.</p>"
    shown = next(found for found in heat_maps(findings, kind) if found.metric == _METRIC)
    said = (
        f"{name}{METRIC_NAMES[_METRIC].lower()} of every head, {STATISTICS[shown.statistic]} (rows: layers, columns: "
        f"heads; light: 0, dark: {short(shown.highest)})"
    )
    heads = "".join(f'<th scope="col" {_LABEL}>{head}</th>' for head in shown.heads)
    rows = ""
    for layer, row in shown.rows:
        cells = "".join(_cell(cell, shown, layer, place) for place, cell in enumerate(row))
        rows += f'<tr><th scope="row" {_LABEL}>{layer}</th>{cells}</tr>'
    return (
        f'<table {_TABLE}><caption style="text-align:left">{escape(said[0].upper() + said[1:])}</caption>'
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cell(cell: Cell | None, shown: HeatMap, layer: int, place: int) -> str:
    if cell is None:
        return "<td></td>"
    if cell.style == "unbounded":
        paper, written = _UNBOUNDED
    else:
        paper = SCALE[int(cell.style.removeprefix("q"))]
        written = ink(paper)
    few = len(shown.heads) <= _FEW
    style = f"background:{paper};color:{written};padding:.1em .3em;text-align:center;min-width:{2 if few else 0.6}em"
    title = f"layer {layer}, head {shown.heads[place]}: {cell.text}"
    return f'<td style="{style}" title="{title}">{cell.text if few else ""}</td>'


_MOST_LAYERS = 60

_LEFT = 'style="text-align:left;padding:.1em .6em"'

_RIGHT = 'style="text-align:right;padding:.1em .6em"'


def notebook_html(report: AuditState) -> str:
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
            result = report.statistics.of(kind, layer)
            numbers = [str(layer), *(short(result[f"{metric}_mean"]) for metric in COLUMNS)]
            numbers.append(count(result["queries"]))
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
