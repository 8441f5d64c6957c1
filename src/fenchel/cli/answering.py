"""What the commands that use a trained model share: their options, what is asked, and how answers are printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenchel.arguments import checked
from fenchel.errors import InputError

if TYPE_CHECKING:
    from fenchel.answering import Line, ShownAnswer

__all__ = [
    "AsJson",
    "PairsFile",
    "Run",
    "Show",
    "ShowFolder",
    "TextFile",
    "asked_lines",
    "print_json",
    "show_attention",
]

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder of the training.", show_default=False)]
TextFile = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="FILE", help="Ask line by line what a file holds, in UTF-8.", show_default=False
    ),
]
PairsFile = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="FILE",
        help="Ask line by line what a file holds, in UTF-8: a premise, a tab and a hypothesis.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: a list with an object an answer.")]
Show = Annotated[
    bool,
    typer.Option(
        "--show",
        help="Draw first-order and exact weights side by side, with certificates: here, as PNG and as a page.",
    ),
]
ShowFolder = Annotated[
    str, typer.Option("--out", metavar="DIR", help="Folder for what --show draws; made if needed.")
]


def asked_lines(given: Sequence[str], file: str | None, *, what: str = "sentence") -> list[Line]:
    """What is asked: arguments of the command, or the lines of a file.

    Raises:
        InputError: If both or neither were given, or one is empty.
    """
    from fenchel.answering import lines_of_file, lines_of_texts

    if file is not None and given:
        raise InputError(f"a {what} and --text FILE were given; expected one of the two.")
    return lines_of_texts(given, what=what) if file is None else lines_of_file(file)


def print_json(found: Any) -> None:
    """Prints JSON on standard output, as other programs read it."""
    typer.echo(json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False))


def show_attention(
    shown: Sequence[ShownAnswer], folder: str, *, title: str, in_terminal: bool = True
) -> None:
    """Draws attention maps in the terminal, and into a folder.

    Args:
        shown: Answers with their maps.
        folder: For figures and the page.
        title: Of the page.
        in_terminal: Whether to draw in the terminal too; not where JSON is printed.
    """
    from fenchel.answering import terminal_map, write_shown

    place = checked("folder", folder, name="out")
    if in_terminal:
        width = shutil.get_terminal_size((80, 24)).columns
        for answer in shown:
            for one in answer.maps:
                typer.echo(f"\n{terminal_map(one, width=width)}")
        typer.echo("")
    page = write_shown(shown, place, title=title)
    typer.echo(f"Attention: {page}", err=not in_terminal)
