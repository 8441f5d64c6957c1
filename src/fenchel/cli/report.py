"""``fenchel report``: the pages and tables of an audit, made again from what it saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked
from fenchel.cli.result import Swap, beside_swap, show_result

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "report"
SUMMARY = "Make the report of an audit again."
HELP = (
    "Make the report of a finished audit again, from the numbers that it saved: report.html, the figures and "
    "the tables. Nothing is measured; use it after an update of fenchel, or when a file was lost."
)
EXAMPLE = "Example: fenchel report audit"


def run(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of a finished audit.", show_default=False)
    ],
    swap: Swap = None,
) -> None:
    """Wires the folder to ``fenchel.auditing.audit_report.AuditReport``."""
    from fenchel.auditing.audit_report import AuditReport, require_extras
    from fenchel.storage import check_writable

    folder: Path = checked("folder", directory, name="DIR")
    report = beside_swap(AuditReport.load(folder), swap)
    require_extras()
    check_writable(folder)
    report.write_files(folder)
    show_result(report, folder)
