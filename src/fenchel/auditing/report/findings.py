"""What an audit found: in sentences, as tables in a terminal, and in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from fenchel.arguments import Kind
from fenchel.auditing.heads import KIND_NAMES, METRIC_NAMES, SHORT_KIND_NAMES, STATISTIC_NAMES
from fenchel.auditing.report.plots import Cell, HeadGrid, heat_maps
from fenchel.auditing.twin import twin_line
from fenchel.drawing import SCALE, count, ink, percent, short, stacked, titled_table
from fenchel.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fenchel.auditing.state import AuditState
    from fenchel.auditing.statistics import AuditStatistics


def measured(report: AuditState) -> AuditStatistics:
    """The numbers of a report.

    Raises:
        InputError: If it holds no head.
    """
    if not report.heads:
        raise InputError(
            "the report holds 0 heads, expected at least 1; did the audit stop before its first batch?"
        )
    return report.statistics


def model_name(manifest: Mapping[str, Any]) -> str:
    """The model's name as its user gave it."""
    return str(manifest.get("model") or "an unnamed model")


_LEARNED = 2.0  # how many times the twin's what moves has to be for it to be said that it came with training


def headline(report: AuditState) -> list[str]:
    """What came out, in three or four sentences of plain text.

    Args:
        report: The audit.

    Returns:
        That the model attends otherwise, if it does; what would move and how far outputs are off; what was sampled, if
        it was; what the deviation of the dual point is and what it measures; what is certified; whether the untrained
        twin was audited.

    Raises:
        InputError: If the report holds no head.
    """
    statistics, twin = measured(report), report.twin
    sentences = (
        otherwise_sentence(report.manifest),
        moved_sentence(statistics, twin),
        sampled_sentence(statistics, report.sample),
        deviation_sentence(statistics, twin),
        certified_sentence(statistics, report.manifest["tol"]),
        twin_line(report.manifest),
    )
    return [sentence for sentence in sentences if sentence]


def otherwise_sentence(manifest: Mapping[str, Any]) -> str | None:
    """That attention under a closeness was measured which is not the model's own; None where it is."""
    if not manifest.get("even_so"):
        return None
    return (
        f"The model does not attend under {manifest.get('closeness')}, by which it was measured: what is called "
        "attention here is what its queries and keys would give under that, not what it computes."
    )


def moved_sentence(statistics: AuditStatistics, twin: AuditStatistics | None = None) -> str:
    """How much weight would move and how far the output is off, beside the untrained twin."""
    heads, counts = len(statistics.heads), {head.queries for head in statistics.heads}
    queries = counts.pop() if len(counts) == 1 else None
    number = queries or statistics.problems
    where = (
        f"{count(number)} quer{'y' if number == 1 else 'ies'} in {'each of ' if queries and heads > 1 else ''}"
        f"{count(heads)} head{'s' if heads != 1 else ''}"
    )
    moved, error = statistics.mean("total_variation"), statistics.mean("mean_error")
    sentence = (
        f"Over {where}, {percent(moved)} of attention's weight would move to other tokens in the exact answer (total "
        f"variation {short(moved)}), and the output is off by {percent(error)} of the exact output's length."
    )
    if twin is None:
        return sentence
    without = twin.mean("total_variation")
    learned = "most of it came" if moved >= _LEARNED * without else "little of it needs to have come"
    return (
        f"{sentence} In the untrained twin it is {percent(without)} and {percent(twin.mean('mean_error'))}, "
        f"so {learned} with training."
    )


def sampled_sentence(statistics: AuditStatistics, words: str | None) -> str | None:
    """Of how many queries the means are estimates, and how good they are; None where all queries were measured."""
    if words is None:
        return None
    sentence = (
        f"Measured were {words}, {count(statistics.problems)} of {count(statistics.population)} "
        "problems: means are estimates for all of them"
    )
    moved, output = (
        [error for head in statistics.heads if math.isfinite(error := head.value(metric, "se"))]
        for metric in ("total_variation", "mean_error")
    )
    if not (moved and output):
        return f"{sentence}; a single window gives no standard errors."
    return (
        f"{sentence}, with standard errors of at most {percent(max(moved))} in a head for the weight that would move "
        f"and of at most {percent(max(output))} for the output."
    )


def deviation_sentence(statistics: AuditStatistics, twin: AuditStatistics | None = None) -> str:
    """How far the dual point is from the exact one, beside what the covariance predicts and the untrained twin has."""
    beside = (
        "" if twin is None else f", and the untrained twin has {percent(twin.mean('relative_deviation'))}"
    )
    return (
        f"The dual point that attention uses is {percent(statistics.mean('relative_deviation'))} from the exact one; "
        f"the covariance of the preference alone predicts {percent(statistics.mean('predicted_deviation'))}{beside}: "
        "this measures how small token vectors are, not how much of the output would change."
    )


def certified_sentence(statistics: AuditStatistics, tolerance: float) -> str:
    """How many exact answers are certified, and to what."""
    missed, problems = statistics.not_converged, statistics.problems
    certified = (
        f"{count(problems - missed)} of {count(problems)} exact answers are certified, {count(missed)} are not"
        if missed
        else f"All {count(problems)} exact answers are certified"
    )
    return (
        f"{certified}: a bound computed in float64 from the answer itself, not trust in the solver, puts its dual "
        f"point within {tolerance:g} of the true one, relative to its length."
    )


def summary_sentence(report: AuditState) -> str:
    """What the audit found, in one sentence.

    Raises:
        InputError: If the report holds no head.
    """
    statistics, twin, manifest = measured(report), report.twin, report.manifest
    heads, missed = len(statistics.heads), statistics.not_converged
    outcome = (
        f"{count(missed)} of {count(statistics.problems)} exact solves did NOT converge, the others are certified"
        if missed
        else f"all {count(statistics.problems)} exact solves are certified"
    )
    sampled = "" if report.sample is None else f", {report.sample}"
    under = f" under {manifest['closeness']}" if manifest.get("closeness") else ""
    if manifest.get("even_so"):
        under += ", although it attends otherwise"

    def mean(metric: str) -> str:
        return percent(statistics.mean(metric))

    def beside(metric: str) -> str:
        return "" if twin is None else f" (untrained twin {percent(twin.mean(metric))})"

    return (
        f"{model_name(manifest)}{under}, {count(heads)} head{'s' if heads != 1 else ''}{sampled}: on average "
        f"{mean('total_variation')} of attention's weight would move{beside('total_variation')} and its output is off "
        f"by {mean('mean_error')}{beside('mean_error')}; its dual point is {mean('relative_deviation')} off the exact "
        f"one, where the covariance alone predicts {mean('predicted_deviation')}; {outcome} in float64 to "
        f"{manifest['tol']:g}."
    )


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
    statistics, sampled = measured(report), report.sample
    several = len(statistics.kinds) > 1
    # Eighty columns have no room for the kinds and a bound.
    metrics = [metric for metric in COLUMNS if metric != "certificate" or not several]

    def table(title: str, *columns: str) -> Table:
        made = titled_table(title)
        for words in columns:
            # Headers break between words and nothing else does, so that a table fits 80 columns.
            left = words == "Kind"
            made.add_column(words.replace(" ", "\n"), justify="left" if left else "right", no_wrap=True)
        return made

    def written(numbers: Mapping[str, Any]) -> list[str]:
        cells = []
        for metric in metrics:
            error = numbers[f"{metric}_se"]
            under = f"\n{f'±{error:.1g}' if math.isfinite(error) else ''}" if sampled else ""
            cells.append(f"{short(numbers[f'{metric}_mean'])}{under}")
        return cells

    title = f"Means over queries, {model_name(report.manifest)}"
    if sampled is not None:
        title += f"\n± standard error, from {sampled}"
    kind_column, names = ["Kind"] * several, [COLUMNS[metric] for metric in metrics]
    layers = table(title, *kind_column, "Layer", *names, "Queries")
    for kind in statistics.kinds:
        name = [SHORT_KIND_NAMES[kind]] * several
        for layer in statistics.layers_of(kind):
            numbers = statistics.of(kind, layer)
            layers.add_row(*name, str(layer), *written(numbers), count(numbers["queries"]))
            name = [""] * several
        layers.add_section()
    farthest = table("Heads in which most weight would move", *kind_column, "Layer", "Head", *names)
    for key, numbers in statistics.farthest("total_variation", _FARTHEST):
        name = [SHORT_KIND_NAMES[key.kind]] * several
        farthest.add_row(*name, str(key.layer), str(key.head), *written(numbers))
    parts: list[Any] = [layers, farthest]
    if statistics.not_converged:
        missed: dict[Kind, int] = {kind: statistics.of(kind)["not_converged"] for kind in statistics.kinds}
        by_kind = [
            f"{SHORT_KIND_NAMES[kind].lower()} {count(number)}" for kind, number in missed.items() if number
        ]
        sentence = (
            f"{count(statistics.not_converged)} of {count(statistics.problems)} problems did not converge"
        )
        parts.append((f"{sentence}: {', '.join(by_kind)}", "bold red"))
    return stacked(*parts)


_METRIC = "total_variation"
_MOST_CELLS = 2_000
_FEW = 16  # heads beside each other in which numbers can be read
_TABLE = 'style="border-collapse:separate;border-spacing:1px;font-size:11px;line-height:1.2;margin:.3em 0"'
_LABEL = 'style="padding:0 .4em;text-align:right;font-weight:normal;opacity:.7"'
_UNBOUNDED = "#dde1e8", "#10131a"


def notebook_map(statistics: AuditStatistics, kind: Kind) -> str:
    """Layers by heads of one kind, coloured by the weight that would have to move, as in the report.

    Args:
        statistics: Of the heads.
        kind: The kind of attention.

    Returns:
        A ``table`` with a caption; for more than 2,000 heads a sentence that says where the map is.
    """
    name = f"{SHORT_KIND_NAMES[kind]}, " if len(statistics.kinds) > 1 else ""
    name += METRIC_NAMES[_METRIC].lower()
    name = name[0].upper() + name[1:]
    if len(statistics.of_kind(kind)) > _MOST_CELLS:
        return f"<p>{name} by head: the map is in report.html.</p>"
    shown = next(one for one in heat_maps(statistics, kind) if one.metric == _METRIC)
    caption = (
        f"{name} of every head, {STATISTIC_NAMES[shown.statistic]} (rows: layers, columns: "
        f"heads; light: 0, dark: {short(shown.highest)})"
    )
    heads = "".join(f'<th scope="col" {_LABEL}>{head}</th>' for head in shown.heads)
    rows = ""
    for layer, row in shown.rows:
        cells = "".join(
            _cell(cell, shown, f"layer {layer}, head {head}")
            for cell, head in zip(row, shown.heads, strict=True)
        )
        rows += f'<tr><th scope="row" {_LABEL}>{layer}</th>{cells}</tr>'
    return (
        f'<table {_TABLE}><caption style="text-align:left">{caption}</caption>'
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cell(cell: Cell | None, shown: HeadGrid, name: str) -> str:
    if cell is None:
        return "<td></td>"
    paper, written = _UNBOUNDED
    if cell.style != "unbounded":
        paper = SCALE[int(cell.style.removeprefix("q"))]
        written = ink(paper)
    few = len(shown.heads) <= _FEW
    style = f"background:{paper};color:{written};padding:.1em .3em;text-align:center;min-width:{2 if few else 0.6}em"
    return f'<td style="{style}" title="{name}: {cell.text}">{cell.text if few else ""}</td>'


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
    statistics = report.statistics
    names = ("Layer", *COLUMNS.values(), "Queries")
    header = "".join(f'<th scope="col" {_RIGHT}>{name}</th>' for name in names)
    rows = []
    for kind in statistics.kinds:
        name = KIND_NAMES[kind]
        for layer in statistics.layers_of(kind):
            numbers = statistics.of(kind, layer)
            means = (short(numbers[f"{metric}_mean"]) for metric in COLUMNS)
            cells = (f"<td {_RIGHT}>{text}</td>" for text in (layer, *means, count(numbers["queries"])))
            rows.append(f"<tr><td {_LEFT}>{name}</td>{''.join(cells)}</tr>")
            name = ""
    left_out = len(rows) - _MOST_LAYERS
    note = f"<p>{left_out} more layers are in the report.</p>" if left_out > 0 else ""
    maps = "".join(notebook_map(statistics, kind) for kind in statistics.kinds)
    return (
        f"<div><p>{escape(summary_sentence(report))}</p>{maps}"
        f'<table><thead><tr><th scope="col" {_LEFT}>Means over queries</th>{header}</tr>'
        f"</thead><tbody>{''.join(rows[:_MOST_LAYERS])}</tbody></table>{note}</div>"
    )
