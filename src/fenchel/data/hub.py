"""Labelled images of the ``datasets`` library: on its hub, in its cache, or in a folder here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.data.hub_rows import HUB_PREFIX, first_line, hub_name, hub_splits
from fenchel.data.image_dataset import check_labels
from fenchel.data.opened_image import opened_image
from fenchel.data.packed import JPEG_NOTE
from fenchel.data.source import AbstractImageSource, ImageSplit
from fenchel.errors import InputError, MissingExtraError
from fenchel.storage.unpacking import check_unpacking

__all__ = ["HubImages", "opened_dataset"]

_LABEL_COLUMNS = ("label", "labels", "fine_label")
_EXACT_MODES = {"1": "L", "L": "L", "RGB": "RGB", "P": "RGB"}


@dataclass(frozen=True)
class HubImages(AbstractImageSource):
    """A dataset with one column of images and one of classes.

    Attributes:
        path: Its name on the hub, a folder of images by class, or a folder that ``save_to_disk`` wrote.
        config: Its configuration, if it has several.
    """

    path: str
    config: str | None = None

    @classmethod
    def of(cls, name: str) -> HubImages:
        """The dataset of a name ``hf:NAME`` or ``hf:NAME:CONFIG``."""
        return cls(*hub_name(name))

    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split, whatever its name is."""
        rows = opened_dataset(self.path, self.config, split)
        image_column, label_column = _columns(rows.features, self.path)
        names = tuple(map(str, rows.features[label_column].names))
        where = f"{HUB_PREFIX}{self.path}, split {split!r}"
        labels = torch.tensor(
            [-1 if label is None else label for label in rows[label_column]], dtype=torch.int64
        )
        check_labels(labels, len(names), where)
        # Undecoded: the library leaves files open that it cannot decode.
        files = rows.cast_column(image_column, type(rows.features[image_column])(decode=False))[image_column]
        images, formats = _stacked(files, where)
        return ImageSplit(images, labels, names, JPEG_NOTE if "JPEG" in formats else "")

    def training_files(self) -> tuple[Path, ...]:
        """None that are known: statistics are computed at every reading."""
        return ()


def opened_dataset(path: str, config: str | None, split: str) -> Any:
    """The rows of a split of a data set, as the library has them.

    Args:
        path: Its name on the hub, or a folder.
        config: Its configuration, if it has several.
        split: The split.

    Raises:
        InputError: If it cannot be opened, or has no such split.
        MissingExtraError: If the library is not installed.
    """
    splits = hub_splits(path, config)
    if split not in splits:
        raise InputError(
            f"dataset {path!r} has no split {split!r}; it has {', '.join(map(repr, splits))}. "
            "Name one of them as the split."
        )
    if not len(splits[split]):
        raise InputError(f"dataset {path!r} has no images in its split {split!r}. Choose another one.")
    return splits[split]


def _columns(features: Mapping[str, Any], path: str) -> tuple[str, str]:
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    if len(labels) > 1:
        labels = [name for name in _LABEL_COLUMNS if name in labels][:1]
    if len(images) != 1 or len(labels) != 1:
        listed = ", ".join(f"{name!r} ({kind})" for name, kind in kinds.items())
        raise InputError(
            f"dataset {path!r} has the columns {listed}; expected one of images (Image) and one of classes "
            f"(ClassLabel; of several, {' or '.join(map(repr, _LABEL_COLUMNS))}). Choose another dataset."
        )
    return images[0], labels[0]


def _stacked(files: Any, where: str) -> tuple[Tensor, set[str]]:
    content, packed, first, formats = bytearray(), 0, (0, 0, 0), set()
    for place, file in enumerate(files):
        try:
            encoded = file["bytes"] if file["bytes"] is not None else Path(file["path"]).read_bytes()
            with opened_image(encoded) as picture:
                mode = picture.mode + (" with transparency" if "transparency" in picture.info else "")
                formats.add(picture.format or "")
                converted = picture.convert(_EXACT_MODES.get(mode, picture.mode))
        except MissingExtraError:
            raise
        except InputError as error:
            raise InputError(f"{where}: image {place} {error}") from None
        except Exception as error:  # decoders raise whatever went wrong
            raise InputError(
                f"{where}: image {place} cannot be decoded: {first_line(error)} Fetch the dataset again."
            ) from None
        if mode not in _EXACT_MODES:
            raise InputError(
                f"{where}: image {place} has the mode {mode}; expected grey or RGB of 8 bits. Convert it first."
            )
        shape = (converted.height, converted.width, len(converted.getbands()))
        first = first if place else shape
        if first != shape:
            raise InputError(
                f"{where}: image {place} has height, width and channels {shape} and image 0 {first}; expected images "
                "of one size and kind. Resize them first."
            )
        content += converted.tobytes()
        packed += len(encoded)
        check_unpacking(where, len(content), packed)
    images = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, *first)
    return images.permute(0, 3, 1, 2).contiguous(), formats
