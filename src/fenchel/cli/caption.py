"""``fenchel caption``: captions of images, and where a captioner looked for every word."""

from __future__ import annotations

from typing import Annotated

import typer

from fenchel.cli.answering import AsJson, Run, Show, ShowFolder, print_json, show_attention
from fenchel.cli.failure import say
from fenchel.cli.options import DeviceName, best_device

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "caption"
SUMMARY = "Caption images with a captioner that was trained."
HELP = (
    "Say what a captioner makes of images, out of the folder of a training. Each line is a file and its caption; what "
    "the data of the training are too few for is said beside it. --show draws, for every word, the cells of the image "
    "that it looked at."
)
EXAMPLE = "Example: fenchel caption runs/captioner dog.jpg --beam 5 --show --out shown. Then open shown/attention.html."


def run(
    folder: Run,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...", help="Files, or folders whose images are taken.", show_default=False
        ),
    ],
    beam: Annotated[int, typer.Option(metavar="N", help="Width of the beam; 1 is greedy.")] = 1,
    length_power: Annotated[
        float, typer.Option(metavar="X", help="Beams are sorted by log P / length^X.")
    ] = 1.0,
    as_json: AsJson = False,
    show: Show = False,
    out: ShowFolder = "caption",
    device: DeviceName = None,
) -> None:
    """Wires the options to ``fenchel.answering.caption``."""
    from fenchel.answering import ShownAnswer, caption

    found = caption(
        folder,
        images,
        beam=beam,
        length_power=length_power,
        show=show,
        device=device or best_device(),
    )
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        for one in found:
            typer.echo(f"{one.image}: {one.text}")
        if note := found[0].note:
            say(f"note: trained on {note}")
    if show:
        drawn = [ShownAnswer(one.image, one.text, one.maps) for one in found]
        show_attention(drawn, out, title="What a captioner looked at", in_terminal=not as_json)
