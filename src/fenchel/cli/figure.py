"""``fenchel figure``: a figure of the theory or of an audit, with its numbers beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked

__all__ = ["EXAMPLE", "HELP", "NAME", "NEEDS_ARGUMENTS", "SUMMARY", "run"]

NAME = "figure"
SUMMARY = "Draw a figure of the theory, or of an audit."
HELP = (
    "Draw a figure, and write it as PNG and SVG with its numbers beside it as JSON. Without a name, list "
    "the figures. Some are made of an audit: deviations needs its folder, covariance takes one in the "
    "place of the demo model."
)
EXAMPLE = "Example: fenchel figure figure3 --out figures. Then open figures/figure3.png."
NEEDS_ARGUMENTS = False
"""Without any, it lists what there is."""


def run(
    figure: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which; see --list.", show_default=False)
    ] = None,
    audit: Annotated[
        str | None,
        typer.Argument(
            metavar="AUDIT",
            help="Folder of a finished audit, for the figures that take one.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Folder for the files; made if needed.")
    ] = "figures",
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the figure of something else that DIR holds by that name."),
    ] = False,
    list_figures: Annotated[bool, typer.Option("--list", help="List the figures, a line each.")] = False,
) -> None:
    """Wires the options to ``fenchel.figures.make_figure``."""
    from fenchel.figures import FIGURES, make_figure

    if list_figures and figure is not None:
        raise typer.BadParameter(f"--list was given with the figure {figure}; expected one of the two.")
    if figure is None:
        if overwrite:
            raise typer.BadParameter("--overwrite was given without a figure; expected its name.")
        widest = max(map(len, FIGURES))
        for name, kind in FIGURES.items():
            typer.echo(f"{name:<{widest}}  {_AUDIT[kind.audit]:<7}  {kind.summary}")
        return
    place: Path = checked("folder", out, name="out")
    made = make_figure(figure, audit, directory=place, overwrite=overwrite)
    typer.echo(made.caption)
    typer.echo(f"Figure: {place / f'{made.name}.png'}")


_AUDIT = {"none": "", "optional": "[AUDIT]", "required": "AUDIT"}
