"""What a finished audit prints: a short table, and where the rest is."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from fenchel.auditing.audit_report import AuditReport
from fenchel.cli.failure import say

__all__ = ["show_result"]


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
    if unsolved := sum(head["not_converged"] for head in report.heads):
        queries = sum(head["queries"] for head in report.heads)
        say(
            f"warning: {unsolved:,} of {queries:,} queries were not solved to the tolerance, and their "
            "numbers are bounds "
            "at best. Raise --tol, or use --dtype float64."
        )
    if folder is not None:
        typer.echo(f"Report: {folder / 'report.html'}")
