"""Options that several commands share, each declared once."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "CheckpointSeconds",
    "DeviceName",
    "Dtype",
    "DtypeName",
    "Heads",
    "Images",
    "Layers",
    "Loader",
    "MaxLength",
    "MaxTokens",
    "MaybeText",
    "ModelName",
    "Out",
    "Overwrite",
    "Resume",
    "Revision",
    "Seed",
    "Stride",
    "TargetColumn",
    "Text",
    "TextColumn",
    "WholeFile",
    "WindowBatchSize",
    "best_device",
]


class Dtype(StrEnum):
    """What a model computes in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"
    auto = "auto"


_TEXT = typer.Option(
    metavar="FILE",
    help="Plain text, .jsonl or .parquet (text and jsonl also as .gz); or a dataset, NAME[:CONFIG][@SPLIT]; or demo, "
    "a short text that comes with fenchel.",
    show_default=False,
)

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub name, local folder, or demo.", show_default=False)
]
Text = Annotated[str, _TEXT]
MaybeText = Annotated[str | None, _TEXT]
Images = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="In the place of a text, for a vision model: a folder of images, or one image.",
        show_default=False,
    ),
]
Loader = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="In the place of a text, for the folder of a run: a Python file whose load(folder) gives the model and "
        "its batches. It is run.",
        show_default=False,
    ),
]
Out = Annotated[
    str, typer.Option(metavar="DIR", help="Folder for the results; made if needed.", show_default=False)
]
WholeFile = Annotated[
    bool, typer.Option("--whole-file", help="Take a plain text file for one document, not one a line.")
]
TextColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the texts in a table.  [default: text]")
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Column of what an encoder-decoder is to write.  [default: the text itself]"
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Stop after N tokens of the text, shards included.  [default: no limit]"),
]
Layers = Annotated[
    str | None, typer.Option(metavar="LIST", help="Only these layers, from 1, such as 1,3-5.  [default: all]")
]
Heads = Annotated[
    str | None, typer.Option(metavar="LIST", help="Only these heads, from 1, such as 1,3-5.  [default: all]")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of everything that is drawn at random.")]
WindowBatchSize = Annotated[int, typer.Option(metavar="N", help="Windows, or single sentences, in a batch.")]
MaxLength = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Tokens in a window, special ones included.  [default: what the model takes, at most 512]",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Tokens from one window's start to the next; shared ones count once.  [default: no overlap]",
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Such as cpu or cuda:1.  [default: cuda if there is one, else cpu]"),
]
DtypeName = Annotated[Dtype, typer.Option(help="What the model computes in; auto: what it was saved in.")]
Revision = Annotated[
    str | None, typer.Option(metavar="NAME", help="Branch, tag or commit of a model on the hub.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in DIR, or begin one; keep a finished one.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start anew, whatever run DIR holds.")]
CheckpointSeconds = Annotated[
    float, typer.Option(metavar="S", help="Save for --resume at most once in S seconds.")
]


def best_device() -> str:
    """The device that a text model runs on where none was asked for; of several processes each gets its own."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
