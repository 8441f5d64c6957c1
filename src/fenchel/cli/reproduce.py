"""``fenchel reproduce``: a figure of the papers beside the same of a model that is here."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked
from fenchel.cli.failure import Interrupted
from fenchel.cli.interruption import what_was_saved
from fenchel.cli.options import (
    DeviceName,
    Dtype,
    DtypeName,
    MaxLength,
    Overwrite,
    Resume,
    Revision,
    TargetColumn,
    Text,
    TextColumn,
    WholeFile,
    WindowBatchSize,
    best_device,
)
from fenchel.cli.progress import observer_of_standard_error

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "reproduce"
SUMMARY = "Set a figure of the papers beside the same of a model."
HELP = (
    "Reproduce a figure of the papers: mean relative deviations of BERT-base by layer (figure4) or head (figure5), of "
    "T5-small by head (figures6-8) or layer (figure4 with that model). The papers' numbers stand beside those of the "
    "model, whose every exact answer is certified, and of its untrained twin."
)
EXAMPLE = "Example: fenchel reproduce figure4 --model demo --text demo. Then read reproduce/figure4.md."


class Figure(StrEnum):
    """What can be reproduced."""

    figure4 = "figure4"
    figure5 = "figure5"
    figures6_8 = "figures6-8"


def run(
    figure: Annotated[
        Figure, typer.Argument(metavar="FIGURE", help="figure4, figure5 or figures6-8.", show_default=False)
    ],
    text: Text,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Hub name, local folder, or demo.  [default: the papers' own]"),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Folder for the results; made if needed.")
    ] = "reproduce",
    whole_file: WholeFile = False,
    text_column: TextColumn = None,
    target_column: TargetColumn = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after N tokens.  [default: no limit]")
    ] = None,
    batch_size: WindowBatchSize = 8,
    max_length: MaxLength = None,
    tol: Annotated[float, typer.Option(metavar="X", help="Relative tolerance of the exact solver.")] = 2e-5,
    device: DeviceName = None,
    dtype: DtypeName = Dtype.float32,
    revision: Revision = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the untrained twin.")] = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Wires the options to ``fenchel.reproducing.reproduce``."""
    place: Path = checked("folder", out, name="out")

    from rich.console import Console

    from fenchel.auditing.checkpoint import AUDIT
    from fenchel.data.text.documents import open_documents
    from fenchel.reproducing import reproduce
    from fenchel.reproducing.table import finding, terminal_table

    # A mistake in the text shows before the model, which can take minutes, is loaded.
    open_documents(text, whole_file=whole_file, text_column=text_column, target_column=target_column)
    try:
        found = reproduce(
            figure.value,
            text,
            model=model,
            max_tokens=max_tokens,
            max_length=max_length,
            batch_size=batch_size,
            device=best_device() if device is None else device,
            dtype=dtype.value,
            revision=revision,
            whole_file=whole_file,
            text_column=text_column,
            target_column=target_column,
            seed=seed,
            tol=tol,
            observer=observer_of_standard_error(),
            directory=place,
            resume=resume,
            overwrite=overwrite,
        )
    except KeyboardInterrupt:
        raise Interrupted(what_was_saved(AUDIT, place / "audit")) from None
    console = Console()
    console.print(terminal_table(found))
    console.print(f"{found.standing} {finding(found)}", markup=False, highlight=False)
    typer.echo(f"Table: {place / f'{found.figure}.md'}")
