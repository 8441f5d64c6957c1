"""``fenchel entail``: what a premise says of a hypothesis, by a model of pairs that was trained here."""

from __future__ import annotations

from typing import Annotated

import typer

from fenchel.cli.answering import (
    AsJson,
    PairsFile,
    Run,
    Show,
    ShowFolder,
    asked_lines,
    print_json,
    show_attention,
)
from fenchel.cli.options import DeviceName, best_device
from fenchel.errors import InputError

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "entail"
SUMMARY = "Say whether a premise entails a hypothesis, and how related they are."
HELP = (
    "Say whether a premise entails a hypothesis, contradicts it or neither, with probabilities, and from 1 to 5 how "
    "related the two are if the data said so, by a model that fenchel train --model pairs trained."
)
EXAMPLE = (
    "Example: fenchel entail runs/sick 'A dog is barking' 'An animal is making noise' --show. The folder is that of a "
    "training of pairs."
)


def run(
    folder: Run,
    premise: Annotated[
        str | None, typer.Argument(metavar="PREMISE", help="What is given.", show_default=False)
    ] = None,
    hypothesis: Annotated[
        str | None, typer.Argument(metavar="HYPOTHESIS", help="What is asked about.", show_default=False)
    ] = None,
    text: PairsFile = None,
    as_json: AsJson = False,
    show: Show = False,
    out: ShowFolder = "attention",
    device: DeviceName = None,
) -> None:
    """Wires the options to ``fenchel.answering.entail``."""
    from fenchel.answering import ShownAnswer, entail, pair_lines

    given = [one for one in (premise, hypothesis) if one is not None]
    if len(given) == 1:
        raise InputError(
            "there is a premise and no hypothesis; expected both, such as 'a dog barks' 'it is quiet'."
        )
    asked = (
        [(given[0], given[1])]
        if given and text is None
        else pair_lines(asked_lines(given, text, what="pair"))
    )
    answers = entail(folder, asked, show=show, device=device or best_device())
    if as_json:
        print_json([one.to_json() for one in answers])
    else:
        for one in answers:
            ranked = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
            degree = "" if one.relatedness is None else f"; relatedness {one.relatedness:.2f}"
            said = ", ".join(f"{name} {share:.3f}" for name, share in ranked)
            typer.echo(f"{said}{degree}\t{one.premise}\t{one.hypothesis}")
    if show:
        drawn = [ShownAnswer(f"{one.premise} / {one.hypothesis}", one.label, one.maps) for one in answers]
        show_attention(drawn, out, title="Premise and hypothesis", in_terminal=not as_json)
