"""What the commands show in a terminal: progress, results and the catalogue."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from fenchel.arguments import checked
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import READS
from fenchel.auditing.swap_effects import exact_heads, require_model
from fenchel.catalogue.registry import NOTES, differences, entry_lines, listed
from fenchel.cli.failure import say
from fenchel.drawing import duration, short, titled_table
from fenchel.io.runs import Progress, ReadingObserver, SilentObserver

if TYPE_CHECKING:
    from fenchel.catalogue import Entry
    from fenchel.swap.report import SwapReport

_PARTS = ("name", "mechanism", "preference u", "evidence z", "verdict")
_ONE_LINE = ("name", "verdict")
_LEFT_OUT_IF_NARROW = ("preference u", "evidence z")
_WIDE = 120  # columns
_MEANING = (
    "Gap: how much less the problem's objective could still be, at most; 0 is exact. The others: the share of the "
    "weight, and of the answer's length, by which it is off."
)


def show(table: RenderableType, *sentences: str) -> None:
    """Prints a table, and sentences as they are."""
    console = Console()
    console.print(table)
    for sentence in sentences:
        console.print(sentence, markup=False, highlight=False)


def observer_of_standard_error(doing: str = "auditing") -> ReadingObserver:
    """Shows progress on standard error if somebody can see it there; a file or a pipe gets none.

    Args:
        doing: What is going on, before the model's name.
    """
    return TerminalObserver(Console(stderr=True), doing) if sys.stderr.isatty() else SilentObserver()


class TerminalObserver:
    """A bar with documents, tokens, tokens a second and the time left.

    Args:
        console: Where to draw it.
        doing: What is going on, before the model's name.
    """

    def __init__(self, console: Console, doing: str = "auditing") -> None:
        self._doing, self._reads, self._told = doing, "text", False
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), console=console
        )
        self._task = self._bar.add_task(doing, total=None, state="")

    def started(self, manifest: Mapping[str, Any]) -> None:
        """Begins to draw."""
        self._reads = str(manifest.get("reads") or "text")
        self._bar.update(self._task, description=f"{self._doing} {manifest.get('model')}")
        self._bar.start()

    def advanced(self, progress: Progress) -> None:
        """Draws how far the audit is; the first time that can be told, says how long all of it will take."""
        if not self._told and progress.seconds_left is not None and progress.fraction != 1:
            self._told = True
            expected = duration(progress.seconds + progress.seconds_left)
            self._bar.console.print(f"About {expected} in all, by the first batch.", highlight=False)
        self._bar.update(
            self._task,
            total=None if progress.fraction is None else 1.0,
            completed=progress.fraction or 0.0,
            state=state(progress, self._reads),
        )

    def finished(self) -> None:
        """Leaves the last state on the screen."""
        self._bar.stop()


def state(progress: Progress, reads: str = "text") -> str:
    """How far an audit is, in words.

    Example:
        >>> state(Progress(3, 12_500, 950.4, 0.25, 13.2, 39.5))
        '3 documents, 12,500 tokens, 950 tokens/s, 0:40 left'
        >>> state(Progress(3, 3, 0.5, 0.25, 6.0, 18.0), "images")
        '3 images, 0.5 images/s, 0:18 left'
    """
    one, several = READS[reads]
    parts = [f"{progress.documents:,} {one if progress.documents == 1 else several}"]
    if reads == "images":
        parts.append(f"{progress.tokens_per_second:.3g} images/s")
    else:
        parts += [f"{progress.tokens:,} tokens", f"{progress.tokens_per_second:,.0f} tokens/s"]
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")
    return ", ".join(parts)


def require_swap(swap: str | None, model: str) -> None:
    """See that a folder holds a swap of a model that swapped heads, before an audit takes its time.

    Raises:
        InputError: If it does not.
    """
    if swap is not None:
        result = _swap(swap)
        require_model(result, model)
        exact_heads(result)


def beside_swap(report: AuditReport, swap: str | None) -> AuditReport:
    """The audit beside the swap in a folder; as it is where none was given.

    Raises:
        InputError: If the folder holds no swap, or one of another model or text.
    """
    return report if swap is None else report.beside_swap(_swap(swap))


def _swap(folder: str) -> SwapReport:
    from fenchel.swap.report import SwapReport

    return SwapReport.load(checked("folder", folder, name="swap"))


def show_result(report: AuditReport, folder: Path | None) -> None:
    """Prints an audit to standard output, and what was not solved to standard error.

    Args:
        report: The audit.
        folder: Where its files are, or None if nowhere.
    """
    from fenchel.auditing.report import summary_sentence, terminal_table
    from fenchel.auditing.twin import twin_line

    if not report.heads:
        typer.echo(f"No document fell into this share; that is noted in {folder}.")
        return
    notes = [report.effects.note] if report.effects is not None and report.effects.note else []
    notes += [pattern.found for pattern in report.suggestions[:1]]
    command = report.importance.command
    notes.append(report.importance.said if command is None else f"{report.importance.said} Next:")
    show(terminal_table(report), summary_sentence(report), twin_line(report.manifest), *notes)
    if command is not None:
        typer.echo(f"  {command}")
    if unsolved := sum(head["not_converged"] for head in report.heads):
        queries = sum(head["queries"] for head in report.heads)
        say(
            f"warning: {unsolved:,} of {queries:,} queries were not solved to the tolerance, and their "
            "numbers are bounds "
            "at best. Raise --tol, or use --dtype float64."
        )
    if folder is not None:
        typer.echo(f"Report: {folder / 'report.html'}")


def print_list(entries: Iterable[Entry]) -> None:
    """Print all entries, a table a family; names in one piece, as they are typed."""
    console, by_family = Console(), dict[str, list["Entry"]]()
    for one in entries:
        by_family.setdefault(one.family, []).append(one)
    left_out = () if console.width >= _WIDE else _LEFT_OUT_IF_NARROW
    shown = [name for name in _PARTS if name not in left_out]
    longest = max(len(one.name) for some in by_family.values() for one in some)
    for family, some in by_family.items():
        table = titled_table(family)
        for heading in shown:
            least = longest if heading == "name" else None
            table.add_column(heading, overflow="fold", no_wrap=heading in _ONE_LINE, min_width=least)
        for row in listed(some):
            table.add_row(
                *(Text(said) for heading, said in zip(_PARTS, row, strict=True) if heading in shown)
            )
        console.print(table)
        if family in NOTES:
            console.print(Text(NOTES[family]))
    if left_out:
        said = f"Preference and evidence are listed from {_WIDE} columns on, and for each: fenchel catalogue NAME."
        console.print(Text(said))


def print_entry(entry: Entry, closeness: str | None, seed: int) -> None:
    """Print one entry, and how far its estimators are from the exact answer on its example."""
    console = Console()
    console.print(entry.title, style="bold", markup=False, highlight=False)
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for label, said in entry_lines(entry):
        lines.add_row(Text(label), Text(said))
    console.print(lines)
    measured = differences(entry, closeness, seed)
    if not measured:
        return
    under = f" under {closeness}" if closeness else ""
    table = titled_table(f"On its example{under}, seed {seed}")
    for heading in ("estimator", "gap, at most", "total variation from exact", "output from exact"):
        table.add_column(heading, justify="left" if heading == "estimator" else "right")
    for one in measured:
        numbers = (short(number) for number in (one.gap, one.total_variation, one.output))
        table.add_row(one.estimator.replace("_", " "), *numbers)
    console.print(table)
    console.print(Text(_MEANING, style="dim"))
