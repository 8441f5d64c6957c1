"""``fenchel compare``: two audits head by head, or more of them as a trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "compare"
SUMMARY = "Compare audits: two models, texts or checkpoints."
HELP = (
    "Compare finished audits head by head: of two models of one shape, of two texts, or of a model before and after "
    "fine-tuning. The last DIR is set against the first; more than two make a trajectory, in the order given. Says "
    "which heads moved, with intervals, and whether they keep their order."
)
EXAMPLE = (
    "Example: fenchel audit demo --text demo --out one; fenchel audit demo --text README.md --out two; "
    "fenchel compare one two --out compare. Then open compare/compare.html in a browser."
)


def run(
    directories: Annotated[
        list[str],
        typer.Argument(metavar="DIR", help="Folders of finished audits.", show_default=False),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the page and the JSON.")] = "compare",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the other comparison that --out holds.")
    ] = False,
) -> None:
    """Wires the options to ``fenchel.comparing.compare``."""
    if len(directories) < 2:
        raise typer.BadParameter("one folder: expected two or more, such as fenchel compare before after.")
    place: Path = checked("folder", out, name="out")

    from rich.console import Console

    from fenchel.comparing import compare
    from fenchel.comparing.table import finding, terminal_table

    report = compare(*directories, directory=place, overwrite=overwrite)
    console = Console()
    console.print(terminal_table(report))
    console.print(finding(report), markup=False, highlight=False)
    typer.echo(f"Page: {place / 'compare.html'}")
