"""``fenchel fill``: words for the blanks of texts, and what the blanks attended to."""

from __future__ import annotations

from typing import Annotated

import typer

from fenchel.cli.answering import (
    AsJson,
    Run,
    Show,
    ShowFolder,
    TextFile,
    asked_lines,
    print_json,
    show_attention,
)
from fenchel.cli.options import DeviceName, best_device

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "fill"
SUMMARY = "Fill in the blanks of texts with a model that was trained to."
HELP = (
    "Say what may stand where a text has [MASK], out of the folder of a training. Each line is a blank with its "
    "likeliest words and their probabilities. --show draws what the blanks attended to in the last layer."
)
EXAMPLE = (
    'Example: fenchel fill runs/cloze "the [MASK] was built in 1920 ." --show. Then open attention/attention.html. '
    "The folder is that of a trained cloze."
)


def run(
    folder: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Texts with [MASK] in them.", show_default=False),
    ] = None,
    text: TextFile = None,
    top: Annotated[int, typer.Option(metavar="N", help="How many words to say for each blank.")] = 5,
    as_json: AsJson = False,
    show: Show = False,
    out: ShowFolder = "attention",
    device: DeviceName = None,
) -> None:
    """Wires the options to ``fenchel.answering.fill``."""
    from fenchel.answering import ShownAnswer, fill

    lines = asked_lines(texts or (), text, what="text")
    found = fill(folder, lines, top=top, show=show, device=device or best_device())
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        for one in found:
            typer.echo(one.filled)
            for number, blank in enumerate(one.blanks, 1):
                pairs = zip(blank.words, blank.probabilities, strict=True)
                said = ", ".join(f"{word} {probability:.3f}" for word, probability in pairs)
                typer.echo(f"  blank {number}: {said}")
    if show:
        drawn = [ShownAnswer(one.text, one.filled, one.maps) for one in found]
        show_attention(drawn, out, title="What blanks looked at", in_terminal=not as_json)
