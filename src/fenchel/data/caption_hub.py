"""Captioned images of the ``datasets`` library: on its hub, in its cache, or in a folder here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.data.captioned_images import CaptionedImages
from fenchel.data.hub import HubImages, opened_dataset
from fenchel.data.opened_image import opened_image
from fenchel.errors import InputError, MissingExtraError

__all__ = ["hub_captions"]

_CAPTION_COLUMNS = ("captions", "caption", "sentences", "text")


def hub_captions(name: str) -> CaptionedImages:
    """The training split of a data set with a column of images and one of captions, a sentence or several a row.

    Args:
        name: ``hf:NAME`` or ``hf:NAME:CONFIG``.

    Raises:
        InputError: If it cannot be opened, has no such columns, or an image cannot be decoded.
        MissingExtraError: If ``datasets`` or Pillow is not installed.
    """
    asked = HubImages.of(name)
    rows = opened_dataset(asked.path, asked.config, "train")
    kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    captions = [column for column in _CAPTION_COLUMNS if column in kinds][:1]
    if len(images) != 1 or not captions:
        listed = ", ".join(f"{column!r} ({kind})" for column, kind in kinds.items())
        raise InputError(
            f"dataset {asked.path!r} has the columns {listed}; expected one of images (Image) and "
            f"one of captions ({', '.join(_CAPTION_COLUMNS)}). Choose another dataset."
        )
    # Undecoded: the library leaves files open that it cannot decode.
    rows = rows.cast_column(images[0], type(rows.features[images[0]])(decode=False))
    read = tuple(_decoded(file, place, name) for place, file in enumerate(rows[images[0]]))
    said = tuple(_sentences(row, place, name) for place, row in enumerate(rows[captions[0]]))
    return CaptionedImages(read, said, tuple(map(str, range(len(read)))), name)


def _decoded(file: Any, place: int, name: str) -> Tensor:
    try:
        content = file["bytes"]
        if content is None:
            with open(file["path"], "rb") as opened:  # noqa: PTH123 - a name as the library has it
                content = opened.read()
        with opened_image(content) as picture:
            converted = picture.convert("RGB")
    except MissingExtraError:
        raise
    except Exception as error:  # decoders raise whatever went wrong
        raise InputError(f"{name}: image {place} cannot be decoded: {' '.join(str(error).split())}") from None
    pixels = torch.frombuffer(bytearray(converted.tobytes()), dtype=torch.uint8)
    return pixels.reshape(converted.height, converted.width, 3).permute(2, 0, 1)


def _sentences(row: Any, place: int, name: str) -> tuple[str, ...]:
    found = [row] if isinstance(row, str) else row
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise InputError(
            f"{name}: the captions of image {place} are {shown(row)}; expected a sentence or a list of them."
        )
    return tuple(" ".join(text.split()) for text in found)
