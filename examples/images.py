"""Images of datasets and files as bytes, for the examples that read them."""

import io
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import torch
from PIL import Image
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn.functional import interpolate

from fenchel.errors import InputError


def stacked(rows: datasets.Dataset, column: str, place: str) -> Tensor:
    """All images of a column, (n, channels, height, width).

    Args:
        rows: The dataset.
        column: Its column of encoded images.
        place: What the dataset is called in errors.

    Raises:
        InputError: If an image is damaged, or they are of several sizes.
    """
    pixels = decoded_rows(rows, column, place)
    if len(shapes := {tuple(one.shape) for one in pixels}) > 1:
        raise InputError(f"{place} has images of shapes such as {sorted(shapes)[:2]}. Make them alike.")
    return torch.stack(pixels)


def decoded_rows(rows: datasets.Dataset, column: str, place: str) -> list[Tensor]:
    """Each image of a column, (channels, height, width); an error names the row."""
    encoded = cast(datasets.Dataset, rows.cast_column(column, datasets.Image(decode=False)))
    return [decoded(one, f"{place}, row {number}") for number, one in enumerate(encoded[column])]


def chosen(rows: datasets.Dataset, label: str, count: int) -> datasets.Dataset:
    """So many rows, each class in its share, the same for every seed; all for 0."""
    if not count or count >= len(rows):
        return rows
    labels = rows[label]
    taken, _ = train_test_split(range(len(rows)), train_size=count, stratify=labels, random_state=0)
    return rows.select(sorted(taken))


def decoded(image: dict[str, Any] | None, place: str = "the image") -> Tensor:
    """An encoded image as bytes (channels, height, width): one channel where it is grey, else three."""
    if image is None:
        raise InputError(f"{place} has no image. Remove it.")
    try:
        with Image.open(io.BytesIO(image["bytes"] or Path(image["path"]).read_bytes())) as opened:
            grey = opened.mode in ("1", "L", "I", "I;16", "F")
            plain = opened.convert("L" if grey else "RGB")
    except OSError as error:
        raise InputError(f"{place} cannot be decoded: {error}. Remove it or mend the file.") from error
    return torch.tensor(np.asarray(plain)).view(plain.height, plain.width, -1).permute(2, 0, 1)


def opened(file: str, channels: int, size: int) -> Tensor:
    """An image file as bytes (channels, size, size)."""
    if not Path(file).is_file():
        raise InputError(f"there is no image {file}. Give files that Pillow can read.")
    return resized(decoded({"path": file, "bytes": None}, file), channels, size)


def resized(image: Tensor, channels: int, size: int) -> Tensor:
    """An image as bytes (channels, size, size): stretched, its channels averaged into one or repeated."""
    pixels = image.float()
    pixels = pixels.mean(0, keepdim=True) if channels == 1 else pixels.expand(3, -1, -1)
    return interpolate(pixels[None], (size, size), mode="bilinear", antialias=True)[0].round().byte()
