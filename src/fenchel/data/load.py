"""Labelled images by name or path."""

from __future__ import annotations

import os
from pathlib import Path

from fenchel.data.idx_folder import IdxFolder
from fenchel.data.image_dataset import ImageDataset
from fenchel.data.source import training_statistics
from fenchel.errors import InputError

__all__ = ["load"]


def load(name_or_path: str | Path, *, split: str = "train", root: str | Path | None = None) -> ImageDataset:
    """Reads a split of a labelled set of images into memory."""
    if name_or_path != "fashion-mnist":
        raise InputError(f"unknown data set {name_or_path!r}; expected 'fashion-mnist'.")
    folder = root or os.environ.get("FENCHEL_DATA")
    if folder is None:
        raise InputError("FENCHEL_DATA is not set.")
    source = IdxFolder(Path(folder) / "fashion_mnist")
    found = source.read(split)
    mean, std = training_statistics(source, found if split == "train" else None)
    return ImageDataset(
        found.images, found.labels, found.class_names, str(name_or_path), found.note, mean, std
    )
