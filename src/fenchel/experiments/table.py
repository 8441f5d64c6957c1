"""The paper's table beside ours: in Markdown, and in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenchel.errors import MissingExtraError
from fenchel.experiments.arm import ARMS
from fenchel.experiments.cell import Cell
from fenchel.experiments.finding import signed
from fenchel.experiments.interval import MeanInterval, is_possible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fenchel.experiments.report import ExperimentReport

__all__ = ["markdown", "markdown_body", "markdown_table", "terminal_table"]

_COLUMNS = (
    "Data", "Learning rate", "Arm", "Paper", "Ours ± 95 %", "Paper: minus ViT", "Ours: minus ViT ± 95 %", "Seeds",
)  # fmt: skip
_TEXT_COLUMNS = 3
_GROUPED = 2
_ENOUGH = 3
_MISSING = "–"


def markdown(report: ExperimentReport) -> str:
    """A page with the table, what it shows, what the arms are, and what differs from the paper.

    Args:
        report: The experiment.

    Returns:
        Markdown that ends with a line end.
    """
    return f"# {report.title}\n\n{markdown_body(report)}"


def markdown_body(report: ExperimentReport) -> str:
    """The page without its heading."""
    parts = [
        markdown_table(report),
        *(["\n".join(f"* {sentence}" for sentence in report.findings)] if report.findings else []),
        "Arms:\n\n" + "\n".join(f"* {ARMS[name].label}: {ARMS[name].reading}." for name in report.plan.arms),
        "Before setting ours beside the paper's:\n\n" + "\n".join(f"* {caveat}" for caveat in report.caveats),
    ]
    return "\n\n".join(parts) + "\n"


def markdown_table(report: ExperimentReport) -> str:
    """The table alone, without a line end after its last line."""
    lines = [
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + "---|" * _TEXT_COLUMNS + "---:|" * (len(_COLUMNS) - _TEXT_COLUMNS),
    ]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in _row(cell)) + " |" for cell in report.cells
    ]
    return "\n".join(lines)


def terminal_table(report: ExperimentReport) -> RenderableType:
    """The same for rich, a table for each data set and learning rate; it fits 80 columns.

    Args:
        report: The experiment.

    Returns:
        Something that ``rich.print`` prints. Names in it are never read as markup.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    try:
        from rich.console import Group
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    state = "" if report.finished else f", partial: {len(report.records)} of {report.planned} runs"
    groups = dict.fromkeys((cell.data, cell.learning_rate) for cell in report.cells)
    return Group(
        Text(f"{report.title}{state}", style="bold"),
        *(_table(f"{data}, learning rate {rate:g}", report, data, rate) for data, rate in groups),
    )


def _table(title: str, report: ExperimentReport, data: str, rate: float) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", pad_edge=False)
    for words in _COLUMNS[_GROUPED:]:
        lines = words.replace(" ± ", "\n± ").replace(": ", ":\n")
        if words == "Arm":
            made.add_column(lines)
        else:
            made.add_column(lines, justify="right", no_wrap=True)
    for cell in report.cells:
        if (cell.data, cell.learning_rate) == (data, rate):
            made.add_row(
                *(Text(words.replace(" ±", "\n±").replace(" (", "\n(")) for words in _row(cell)[_GROUPED:])
            )
    return made


def _row(cell: Cell) -> list[str]:
    paper = _MISSING if cell.paper is None else f"{cell.paper.accuracy:.3f} ± {cell.paper.half_width:.2f}"
    return [
        cell.data,
        f"{cell.learning_rate:g}",
        cell.label,
        paper,
        _written(cell.accuracy, sign=False),
        _MISSING if cell.paper_difference is None else signed(cell.paper_difference, 3),
        _written(cell.difference, sign=True),
        str(len(cell.seeds)) if len(cell.seeds) == cell.planned else f"{len(cell.seeds)} of {cell.planned}",
    ]


def _written(found: MeanInterval | None, *, sign: bool) -> str:
    if found is None:
        return _MISSING

    def number(value: float) -> str:
        return signed(value) if sign else f"{value:.4f}".replace("-", "−")

    if found.half_width is None:
        return f"{number(found.mean)} (one seed)"
    few = f" ({found.count} seeds)" if found.count < _ENOUGH else ""
    half_width = f"{found.half_width:.4f}" if is_possible(found, -1.0 if sign else 0.0, 1.0) else _MISSING
    return f"{number(found.mean)} ± {half_width}{few}"
