"""A heat map for notebooks, which keep neither style sheets nor scripts: every cell says its own colour."""

from __future__ import annotations

from html import escape

from fenchel.auditing.heads import Kind
from fenchel.auditing.report.findings import METRIC_NAMES, SHORT_KIND_NAMES, STATISTICS, Findings
from fenchel.auditing.report.heatmap import Cell, HeatMap, heat_maps
from fenchel.drawing import ink, scale, short

__all__ = ["notebook_map"]

_METRIC = "total_variation"
_MOST_CELLS = 2_000
_FEW = 16  # heads beside each other in which numbers can be read
_TABLE = 'style="border-collapse:separate;border-spacing:1px;font-size:11px;line-height:1.2;margin:.3em 0"'
_LABEL = 'style="padding:0 .4em;text-align:right;font-weight:normal;opacity:.7"'
_PLAIN = {"unbounded": ("#dde1e8", "#10131a"), "missing": ("#f6f7f9", "#596274")}


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


_COLOURS = scale()


def _cell(cell: Cell | None, shown: HeatMap, layer: int, place: int) -> str:
    if cell is None:
        return "<td></td>"
    if cell.style in _PLAIN:
        paper, written = _PLAIN[cell.style]
    else:
        paper = _COLOURS[int(cell.style.removeprefix("q"))]
        written = ink(paper)
    few = len(shown.heads) <= _FEW
    style = f"background:{paper};color:{written};padding:.1em .3em;text-align:center;min-width:{2 if few else 0.6}em"
    title = f"layer {layer}, head {shown.heads[place]}: {cell.text}"
    return f'<td style="{style}" title="{title}">{cell.text if few else ""}</td>'
