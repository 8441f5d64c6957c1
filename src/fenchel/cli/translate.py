"""``fenchel translate``: a sentence in another language, by a translator that was trained here."""

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
from fenchel.cli.failure import say
from fenchel.cli.options import DeviceName, best_device

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "translate"
SUMMARY = "Translate sentences with a translator that was trained."
HELP = (
    "Translate sentences, a line a sentence, by a translator that was trained here, in the direction in which it was. "
    "What --show draws is where it looked in the source for every piece of a word."
)
EXAMPLE = (
    "Example: fenchel translate runs/en-de 'A dog runs across the grass.' --beam 5 --show. The folder is that of a "
    "trained translator."
)


def run(
    folder: Run,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="What to translate.", show_default=False),
    ] = None,
    text: TextFile = None,
    beam: Annotated[int, typer.Option(metavar="N", help="Width of the beam; 1 is greedy.")] = 1,
    length_power: Annotated[
        float, typer.Option(metavar="X", help="Beams are sorted by log P / length^X.")
    ] = 1.0,
    as_json: AsJson = False,
    show: Show = False,
    out: ShowFolder = "attention",
    device: DeviceName = None,
) -> None:
    """Wires the options to ``fenchel.answering.translate``."""
    from fenchel.answering import ShownAnswer, translate

    lines = asked_lines(sentences or (), text)
    found = translate(
        folder, lines, beam=beam, length_power=length_power, show=show, device=device or best_device()
    )
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        for one in found:
            typer.echo(one.text)
    if unknown := sum(one.unknown > 0 for one in found):
        say(f"note: {unknown} of {len(found)} sentences have signs that the translator does not know")
    if cut := sum(not one.ended for one in found):
        say(f"note: {cut} of {len(found)} translations do not end by themselves and were cut")
    if show:
        drawn = [ShownAnswer(one.source, one.text, one.maps) for one in found]
        show_attention(drawn, out, title="What a translator looked at", in_terminal=not as_json)
