"""Captions of images by a trained captioner, and the cells that it looked at for every word."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fenchel.answering.attention_map import AttentionMap, Grid, seen_attention
from fenchel.answering.trained_run import TrainedRun
from fenchel.arguments import checked
from fenchel.data.captioned_images import as_input
from fenchel.data.image_files import open_images
from fenchel.errors import InputError
from fenchel.models import Captioner
from fenchel.models.decoding import Decoded
from fenchel.train.captions.task import BEGIN, END, NEVER_SAID

__all__ = ["Caption", "caption"]

_SHOWN_SIDE = 192
_SPACE = "▁"


@dataclass(frozen=True)
class Caption:
    """What a captioner says of an image.

    Attributes:
        image: The file.
        text: The caption.
        pieces: The pieces of words that it was said in, and ``(end)`` where it ends by itself.
        log_probability: Of all of them, in nats.
        score: What beams are sorted by, ``log_probability`` / length^power.
        ended: Whether it ends by itself, or was cut at the longest that the training allows.
        note: What must be said beside it, from the data that the captioner was trained on.
        maps: From pieces to cells, where they were asked for.
    """

    image: str
    text: str
    pieces: tuple[str, ...]
    log_probability: float
    score: float
    ended: bool
    note: str
    maps: tuple[AttentionMap, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """The caption as JSON values."""
        return {
            "image": self.image,
            "caption": self.text,
            "pieces": list(self.pieces),
            "log_probability": self.log_probability,
            "score": self.score,
            "ended": self.ended,
            "note": self.note,
            **({"attention": [one.to_json() for one in self.maps]} if self.maps else {}),
        }


def caption(
    run: str | Path | TrainedRun,
    images: Sequence[str | Path],
    *,
    beam: int = 1,
    length_power: float = 1.0,
    show: bool = False,
    device: str | None = None,
) -> list[Caption]:
    """Captions images.

    Args:
        run: The folder of a training of a captioner.
        images: Files, or folders of images.
        beam: Width of the beam; 1 is greedy.
        length_power: What beams are sorted by is log P / length^power.
        show: Whether to say what the captioner looked at, ``Caption.maps``.
        device: Where to compute. Default: on the processor.

    Returns:
        One for each image, in the order given.

    Raises:
        InputError: If there is no such training or image, or one cannot be read; or maps are asked of a captioner that
            does not look.
        MissingExtraError: If Pillow or ``tokenizers`` is not installed.
    """
    opened = TrainedRun.read(run, tasks=("captions",), device=device)
    model = opened.model
    assert isinstance(model, Captioner)  # noqa: S101 - what the task makes
    if show and model.attention == "mean":
        raise InputError(
            f"{opened.folder} was trained with attention 'mean', which does not look; expected soft or hard attention. "
            "Leave --show out."
        )
    beam = checked("size", beam, name="beam")
    if (length_power := checked("scale", length_power, name="length power")) < 0:
        raise InputError(f"length power is {length_power}; expected a number of at least 0, such as 1.")
    files = _files(images)
    subwords = opened.subwords
    size = model.templates.image_size
    pictures = [_pixels(picture) for _, picture in files]
    inputs = as_input(pictures, size).to(opened.device)
    found = model.captions(
        inputs,
        begin=subwords.number(BEGIN),
        end=subwords.number(END),
        longest=int(opened.description["longest"]),
        never=NEVER_SAID,
        beam=beam,
        length_power=length_power,
    )
    said: list[Caption] = []
    for (name, picture), pixels, one in zip(files, inputs, found, strict=True):
        pieces = tuple(subwords.token(number).strip(_SPACE) or _SPACE for number in one.words)
        pieces = (*pieces, "(end)") if one.ended else pieces
        maps: tuple[AttentionMap, ...] = ()
        if show:
            words = torch.tensor([[subwords.number(BEGIN), *one.words]], device=opened.device)
            maps = _maps(model, pixels, words, pieces, Path(name).name, picture)
        text = subwords.decoded(one.words)
        said.append(_caption(name, text, pieces, one, length_power, opened, maps))
    return said


def _caption(
    name: str,
    text: str,
    pieces: tuple[str, ...],
    found: Decoded,
    power: float,
    run: TrainedRun,
    maps: tuple[AttentionMap, ...],
) -> Caption:
    note = str(run.description.get("note", ""))
    score = found.score(power)
    return Caption(name, text, pieces, found.log_probability, score, found.ended, note, maps)


def _files(images: Sequence[str | Path]) -> list[tuple[str, Any]]:
    """Every image with its name, decoded by Pillow."""
    if isinstance(images, str | Path):
        images = [images]
    if not isinstance(images, Sequence) or not images:
        raise InputError("there is no image. Give at least one file, or a folder of images.")
    found: list[tuple[str, Any]] = []
    for one in images:
        opened = open_images(one)
        found += [(str(path), opened.read(place)) for place, path in enumerate(opened.paths)]
    return found


def _pixels(picture: Any) -> torch.Tensor:
    content = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return content.reshape(picture.height, picture.width, 3).permute(2, 0, 1)


def _maps(
    model: Captioner,
    pixels: torch.Tensor,
    words: torch.Tensor,
    pieces: tuple[str, ...],
    name: str,
    picture: Any,
) -> tuple[AttentionMap, ...]:
    """What each piece looked at: the query of a piece is asked after the pieces before it."""
    with torch.no_grad(), seen_attention(model) as seen:
        model(images=pixels.unsqueeze(0), words=words[:, : len(pieces)])
    side = model.templates.side
    keys = [f"{row + 1}.{column + 1}" for row in range(side) for column in range(side)]
    hard = "; the heaviest cell alone is read" if model.attention == "hard" else ""
    title = f"words to {side} × {side} cells of {name}{hard}"
    return seen[0].maps(title, pieces, keys, grid=Grid(_embedded(picture), side, side))


def _embedded(picture: Any) -> str:
    """A picture as the model saw it, a square, as a data URI."""
    content = io.BytesIO()
    picture.resize((_SHOWN_SIDE, _SHOWN_SIDE)).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
