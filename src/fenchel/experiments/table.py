"""The table of an experiment, beside the paper's where there is one: in Markdown, and in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fenchel.errors import MissingExtraError
from fenchel.experiments.arm import Arm
from fenchel.experiments.cell import Cell
from fenchel.experiments.column import decimals_of
from fenchel.experiments.finding import signed
from fenchel.experiments.interval import MeanInterval, is_possible
from fenchel.experiments.results import Results
from fenchel.runs.terminal import titled_table
from fenchel.train.metric import Metric

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["markdown", "markdown_body", "markdown_table", "terminal_table"]

_TEXT_COLUMNS = 3
_GROUPED = 2
_ENOUGH = 3
_MISSING = "–"


def markdown(results: Results) -> str:
    """A page with the table, what it shows, what the arms are, and what differs from the paper.

    Args:
        results: Of the experiment.

    Returns:
        Markdown that ends with a line end.
    """
    return f"# {results.title}\n\n{markdown_body(results)}"


def markdown_body(results: Results) -> str:
    """The page without its heading."""
    parts = [
        markdown_table(results),
        *(["\n".join(f"* {sentence}" for sentence in results.findings)] if results.findings else []),
        "Arms:\n\n"
        + "\n".join(f"* {arm.label}: {arm.reading}{_compared(arm, results)}." for arm in results.arms),
        results.of.before + "\n\n" + "\n".join(f"* {caveat}" for caveat in results.caveats),
    ]
    return "\n\n".join(parts) + "\n"


def markdown_table(results: Results) -> str:
    """The table alone, without a line end after its last line; above it, data and learning rate that all cells have."""
    beside = tuple(results.cells[0].beside) if results.cells else ()
    groups = _groups(results)
    said = [f"{title}:\n" for title in groups] if len(groups) == 1 else []
    left_out = _GROUPED if said else 0
    columns = (*_columns(results), *beside)[left_out:]
    rows = [
        " | ".join(words.replace("|", "\\|") for words in row[left_out:])
        for row in (
            (*_row(cell, results).values(), *(cell.beside[label] for label in beside))
            for cell in results.cells
        )
    ]
    of_words = _TEXT_COLUMNS - left_out
    return "\n".join(
        [
            *said,
            f"| {' | '.join(columns)} |",
            "|" + "---|" * of_words + "---:|" * (len(columns) - of_words),
            *(f"| {row} |" for row in rows),
        ]
    )


def terminal_table(results: Results) -> RenderableType:
    """The same for rich, a table for each data set and learning rate; it fits 80 columns.

    Args:
        results: Of the experiment.

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
    state = "" if results.finished else f", partial: {len(results.records)} of {results.planned} runs"
    return Group(
        Text(f"{results.title}{state}", style="bold"),
        *(_table(title, results, cells) for title, cells in _groups(results).items()),
    )


def _groups(results: Results) -> dict[str, list[Cell]]:
    """The cells of each data set and learning rate, under the words that say which."""
    found: dict[str, list[Cell]] = {}
    for cell in results.cells:
        found.setdefault(f"{cell.data}, learning rate {cell.learning_rate:g}", []).append(cell)
    return found


def _table(title: str, results: Results, cells: Sequence[Cell]) -> RenderableType:
    from rich.text import Text

    made = titled_table(title)
    for words in _columns(results)[_GROUPED:]:
        lines = words.replace(" ± ", "\n± ").replace(": ", ":\n")
        if words == "Arm":
            made.add_column(lines)
        else:
            made.add_column(lines, justify="right", no_wrap=True)
    for cell in cells:
        made.add_row(
            *(
                Text(words.replace(" ±", "\n±").replace(" (", "\n("))
                for words in list(_row(cell, results).values())[_GROUPED:]
            )
        )
    return made


def _columns(results: Results) -> tuple[str, ...]:
    base, metric = results.base, results.of.headline
    if results.of.reported is not None:
        compared = ("Paper", "Ours ± 95 %", f"Paper: minus {base}", f"Ours: minus {base} ± 95 %")
    else:
        control = "control" if any(arm.against for arm in results.arms) else base
        compared = (f"Test {_called(metric)} ± 95 %", f"Minus {control} ± 95 %")
    return ("Data", "Learning rate", "Arm", *compared, "Seeds")


def _compared(arm: Arm, results: Results) -> str:
    """With what an arm is compared, where that is not the baseline of all."""
    if not any(one.against for one in results.arms):
        return ""
    against = arm.against or results.of.baseline
    return "" if against == arm.name else f"; its control is {results.of.arms[against].label}"


def _called(metric: Metric) -> str:
    """The name of a metric within a sentence; an abbreviation is one."""
    return metric.unit if metric.unit.lower() == metric.name else metric.name.replace("_", " ")


def _row(cell: Cell, results: Results) -> dict[str, str]:
    """What stands in the columns, in their order."""
    metric = results.of.headline
    ours = _written(cell.headline, metric), _written(cell.difference, metric, sign=True)
    if results.of.reported is not None:
        paper = _MISSING if cell.paper is None else f"{cell.paper.accuracy:.3f} ± {cell.paper.half_width:.2f}"
        change = _MISSING if cell.paper_difference is None else signed(cell.paper_difference, 3)
        compared = (paper, ours[0], change, ours[1])
    else:
        compared = ours
    seeds = (
        str(len(cell.seeds)) if len(cell.seeds) == cell.planned else f"{len(cell.seeds)} of {cell.planned}"
    )
    named = cell.data, f"{cell.learning_rate:g}", cell.label
    return dict(zip(_columns(results), (*named, *compared, seeds), strict=True))


def _written(found: MeanInterval | None, metric: Metric, *, sign: bool = False) -> str:
    if found is None:
        return _MISSING
    decimals = decimals_of(metric.most)

    def number(value: float) -> str:
        return signed(value, decimals) if sign else f"{value:.{decimals}f}".replace("-", "−")

    if found.half_width is None:
        return f"{number(found.mean)} (one seed)"
    few = f" ({found.count} seeds)" if found.count < _ENOUGH else ""
    width = metric.most - metric.least
    least, most = (-width, width) if sign else (metric.least, metric.most)
    half_width = f"{found.half_width:.{decimals}f}" if is_possible(found, least, most) else _MISSING
    return f"{number(found.mean)} ± {half_width}{few}"
