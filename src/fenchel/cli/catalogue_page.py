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

_PARTS = ("name", "mechanism", "preference u", "evidence z", "verdict")
_ONE_LINE = ("name", "verdict")
_LEFT_OUT_IF_NARROW = ("preference u", "evidence z")
_WIDE = 120  # columns
_MEANING = (
    "Gap: how much less the problem's objective could still be, at most; 0 is exact. The others: the share of the "
    "weight, and of the answer's length, by which it is off."
)
_LABELS = {"first_order": "first order", "second_order": "second order", "exact": "exact"}


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
        table.add_row(_LABELS[one.estimator], short(one.gap), short(one.total_variation), short(one.output))
    console.print(table)
    console.print(Text(_MEANING, style="dim"))
