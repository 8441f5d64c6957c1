"""A reproduction in words and tables, for Markdown and for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.auditing.report.findings import KIND_NAMES
from fenchel.drawing import count, short, titled_table
from fenchel.errors import MissingExtraError
from fenchel.reproducing.paper import SETTING, UNSAID

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fenchel.reproducing.reproduction import PanelResult, Reproduction

__all__ = ["finding", "layer_rows", "markdown", "terminal_table"]

_COLUMNS = ("Layer", "Paper", "Ours", "Twin", "Predicted", "Total variation", "Twin's")


def finding(found: Reproduction) -> str:
    """What came out, in the measures that tell a trained model from an untrained one and those that do not."""
    ours = [_mean(row) for result in found.panels for row in result.ours]
    twin = [_mean(row) for result in found.panels for row in result.twin]
    moved = [_mean(result.beside["total_variation"]) for result in found.panels]
    twin_moved = [_mean(result.twin_beside["total_variation"]) for result in found.panels]
    solved = (
        f"{count(found.not_converged)} of {count(found.problems)} exact problems are NOT certified"
        if found.not_converged
        else f"All {count(found.problems)} exact problems are certified in float64"
    )
    return (
        f"The layers' mean relative deviation is {_range(ours)} in {_called(found.model)} and {_range(twin)} in its "
        f"untrained twin; the weight that would have to move is {short(_mean(moved))} and {short(_mean(twin_moved))}. "
        f"{solved}."
    )


def markdown(found: Reproduction) -> str:
    """The reproduction as a page of Markdown."""
    manifest = found.manifest
    text = Path(str(manifest.get("texts"))).name
    lines = [
        f"# {found.figure} of the paper, with {_escaped(_called(found.model))}",
        "",
        _escaped(found.standing),
        "",
        f"Read: {_escaped(text)}, {count(manifest.get('tokens'))} tokens in windows of at most "
        f"{manifest.get('max_length')}. In the papers {SETTING}. They do not say {UNSAID}. Here every λ* is solved to "
        f"a certificate of {manifest.get('tol'):g}.",
        "",
        _escaped(finding(found)),
        "",
        "*Predicted* is what the covariance of the preference alone makes of the deviation; *twin* is the same "
        "configuration with weights that were never trained, on the same text.",
    ]
    by_head = any(result.panel.by == "head" for result in found.panels)
    lines += ["", f"The distributions are drawn in audit/figure{5 if by_head else 4}.png."]
    for result in found.panels:
        lines += ["", f"## {_title(result)}", ""]
        if result.panel.remark:
            lines += [f"Of the paper's numbers: {result.panel.remark}.", ""]
        lines += _markdown_table(_COLUMNS, layer_rows(result))
        if result.panel.by == "head":
            for name, rows in (
                (f"Paper, {result.panel.model}", result.panel.printed),
                ("Ours", result.ours),
                ("Untrained twin", result.twin),
            ):
                heads = max(len(row) for row in rows)
                table = [
                    [str(layer), *(short(value) for value in row), *["–"] * (heads - len(row))]
                    for layer, row in enumerate(rows, start=1)
                ]
                lines += ["", f"### {_escaped(name)}, by head", ""]
                lines += _markdown_table(["Layer", *(f"Head {n + 1}" for n in range(heads))], table)
    if found.missing:
        lines += ["", f"Not shown, since the model has no such attention: {', '.join(found.missing)}."]
    return "\n".join(lines) + "\n"


def layer_rows(result: PanelResult) -> list[list[str]]:
    """Layer by layer: the paper's number, ours, the twin's, and what tells them apart; by head, means and ranges."""

    def cell(rows: Sequence[Sequence[float]], place: int) -> str:
        if place >= len(rows):
            return "–"
        row = rows[place]
        if len(row) == 1:
            return short(row[0])
        return f"{short(_mean(row))} ({short(min(row))}–{short(max(row))})"

    def value(values: Sequence[float], place: int) -> str:
        return short(values[place]) if place < len(values) else "–"

    return [
        [
            str(place + 1),
            cell(result.panel.printed, place),
            cell(result.ours, place),
            cell(result.twin, place),
            value(result.beside["predicted_deviation"], place),
            value(result.beside["total_variation"], place),
            value(result.twin_beside["total_variation"], place),
        ]
        for place in range(max(len(result.panel.printed), len(result.ours)))
    ]


def terminal_table(found: Reproduction) -> RenderableType:
    """A table a panel, for rich.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    try:
        from rich.console import Group
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    tables: list[Any] = []
    for result in found.panels:
        made = titled_table(_title(result))
        for name in _COLUMNS:
            made.add_column(name.replace(" ", "\n"), justify="right")
        for row in layer_rows(result):
            made.add_row(*map(_narrow, row))
        tables.append(made)
    return Group(*tables)


def _narrow(cell: str) -> str:
    """A mean and its range in two lines, without the zeros before the points."""
    mean, _, spread = cell.partition(" (")
    return f"{mean}\n{spread.rstrip(')').replace('0.', '.')}" if spread else mean


def _title(result: PanelResult) -> str:
    name = f"{result.panel.name.capitalize()}, {KIND_NAMES[result.panel.kind].lower()}"
    return name + (": mean over heads (least–largest head)" if result.panel.by == "head" else "")


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _range(values: Sequence[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def _called(model: str) -> str:
    # Of a folder the last part: a page that is published need not say where on a disk it lay.
    return Path(model).name or model


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in " ".join(text.split()))
