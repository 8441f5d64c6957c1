"""``fenchel classify``: the class of a sentence, by a classifier that was trained here."""

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

NAME = "classify"
SUMMARY = "Say of which class a sentence is."
HELP = (
    "Say of which class sentences are, with the probability of each class, by a model that fenchel train --model "
    "classifier trained."
)
EXAMPLE = "Example: fenchel classify runs/trec 'who wrote this ?' --show. The folder is that of a trained classifier."


def run(
    folder: Run,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="What to classify.", show_default=False),
    ] = None,
    text: TextFile = None,
    as_json: AsJson = False,
    show: Show = False,
    out: ShowFolder = "attention",
    device: DeviceName = None,
) -> None:
    """Wires the options to ``fenchel.answering.classify``."""
    from fenchel.answering import ShownAnswer, classify

    lines = asked_lines(sentences or (), text)
    answers = classify(folder, lines, show=show, device=device or best_device())
    if as_json:
        print_json([one.to_json() for one in answers])
    else:
        for one in answers:
            ranked = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
            typer.echo(f"{', '.join(f'{name} {share:.3f}' for name, share in ranked)}\t{one.sentence}")
    if show:
        drawn = [ShownAnswer(one.sentence, one.label, one.maps) for one in answers]
        show_attention(drawn, out, title="Classified by attention", in_terminal=not as_json)
