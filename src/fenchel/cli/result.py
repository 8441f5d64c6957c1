"""What a finished audit prints: a short table, and where the rest is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fenchel.arguments import checked
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.swap_effects import exact_heads, require_model
from fenchel.cli.failure import say

__all__ = ["Swap", "beside_swap", "require_swap", "show_result"]

Swap = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="A swap of this model and text with --per-head, to see deviation against effect head by head.",
        show_default=False,
    ),
]
"""The option that puts a swap beside an audit."""


def require_swap(swap: str | None, model: str) -> None:
    """See that a folder holds a swap of a model that swapped heads, before an audit takes its time.

    Raises:
        InputError: If it does not.
    """
    if swap is not None:
        from fenchel.swap.report import SwapReport

        found = SwapReport.load(checked("folder", swap, name="swap"))
        require_model(found, model)
        exact_heads(found)


def beside_swap(report: AuditReport, swap: str | None) -> AuditReport:
    """The audit beside the swap in a folder; as it is where none was given.

    Raises:
        InputError: If the folder holds no swap, or one of another model or text.
    """
    if swap is None:
        return report
    from fenchel.swap.report import SwapReport

    return report.beside_swap(SwapReport.load(checked("folder", swap, name="swap")))


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
    console = Console()
    console.print(terminal_table(report))
    console.print(summary_sentence(report), markup=False, highlight=False)
    console.print(twin_line(report.manifest), markup=False, highlight=False)
    if report.effects is not None and report.effects.note:
        console.print(report.effects.note, markup=False, highlight=False)
    if report.suggestions and (command := report.suggestions[0].command) is not None:
        console.print(f"{report.suggestions[0].found} Next:", markup=False, highlight=False)
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
