"""``fenchel merge``: one audit from those of its shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked
from fenchel.cli.result import show_result

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "merge"
SUMMARY = "Merge the audits of shards into one."
HELP = (
    "Merge the audits of the shards of a text into one. The order of the folders changes nothing. Each DIR "
    "holds an audit, or folders shard-I-of-N that do."
)
EXAMPLE = (
    "Example: fenchel audit demo --text demo --out audit --shard 0/2; "
    "fenchel audit demo --text demo --out audit --shard 1/2; fenchel merge audit"
)


def run(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Folders of audits.", show_default=False)
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the results.  [default: the one DIR, if only one]"),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge the shards that are there although others are missing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the audit of something else that --out holds.")
    ] = False,
) -> None:
    """Wires the options to ``fenchel.auditing.merge.merge``."""
    if out is None and len(directories) > 1:
        raise typer.BadParameter("several folders: say with --out where to write the merged audit.")

    from fenchel.auditing.merge import merge

    folders: list[Path] = [checked("folder", directory, name="DIR") for directory in directories]
    target: Path = folders[0] if out is None else checked("folder", out, name="out")
    show_result(merge(folders, target, partial=partial, overwrite=overwrite), target)
