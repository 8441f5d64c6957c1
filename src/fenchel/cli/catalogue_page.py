"""The catalogue in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fenchel.catalogue.registry import NOTES
from fenchel.catalogue.table import differences, entry_lines, listed
from fenchel.runs.number import short
from fenchel.runs.terminal import titled_table

if TYPE_CHECKING:
    from fenchel.catalogue import Entry

__all__ = ["print_entry", "print_list"]

_LABELS = {"first_order": "first order", "second_order": "second order", "exact": "exact"}


def print_list(entries: Iterable[Entry]) -> None:
    """Print all entries, a table a family."""
    console, by_family = Console(), dict[str, list["Entry"]]()
    for one in entries:
        by_family.setdefault(one.family, []).append(one)
    for family, some in by_family.items():
        table = titled_table(family)
        for heading in ("name", "mechanism", "preference u", "evidence z", "verdict"):
            table.add_column(heading, overflow="fold")
        for row in listed(some):
            table.add_row(*map(Text, row))
        console.print(table)
        if family in NOTES:
            console.print(Text(NOTES[family]))


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
        table.add_row(_LABELS[one.estimator], short(one.gap), short(one.total_variation), short(one.output))
    console.print(table)
