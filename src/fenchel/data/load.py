"""Labelled images by name or path."""

from __future__ import annotations

from pathlib import Path

from fenchel.arguments import checked
from fenchel.data.hub import HubImages
from fenchel.data.hub_rows import HUB_PREFIX
from fenchel.data.image_dataset import ImageDataset
from fenchel.data.locate import NAMES, at_path, known_names, named
from fenchel.data.source import AbstractImageSource, training_statistics
from fenchel.errors import InputError

__all__ = ["load"]

_SPLITS = ("train", "test")


def load(name_or_path: str | Path, *, split: str = "train", root: str | Path | None = None) -> ImageDataset:
    """Reads a split of a labelled set of images into memory, as bytes. Nothing is downloaded but ``hf:`` names.

    Args:
        name_or_path: One of

            * ``fashion-mnist``, ``cifar10``, ``cifar100``: found under ``root`` and compared with the published
              checksums;
            * the path of a folder of IDX files or of CIFAR batches, or of an npz file: read as it is;
            * ``hf:NAME`` or ``hf:NAME:CONFIG``: of the ``datasets`` library, or a folder that it can read.

            A folder here whose name is one of the three is given as ``./cifar10``.
        split: ``train`` or ``test``; for ``hf:`` any that the dataset has.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Returns:
        The images; ``mean`` and ``std`` are those of the training split, whichever is read. ``note`` says what has to
        be said beside every figure made from them.

    Raises:
        InputError: If the name is unknown, or files are missing, truncated or corrupt.
        MissingExtraError: If a format needs a package that is not installed: ``numpy`` and ``PIL`` for npz files,
            ``datasets`` for ``hf:`` names. IDX files and CIFAR batches need none.
    """
    name = str(name_or_path)
    if not name.startswith(HUB_PREFIX) and split not in _SPLITS:
        raise InputError(f"split is {split!r}; expected 'train' or 'test'.")
    source = _source(name, root)
    found = source.read(split)
    mean, std = training_statistics(source, found if split == "train" else None)
    return ImageDataset(found.images, found.labels, found.class_names, name, found.note, mean, std)


def _source(name: str, root: str | Path | None) -> AbstractImageSource:
    if name.startswith(HUB_PREFIX):
        return HubImages.of(name)
    if name in NAMES:
        return named(name, root)
    path = checked("data_path", name, name="data")
    if path.exists():
        return at_path(path)
    raise InputError(
        f"{name!r} is neither a known data set nor a path that exists; expected one of {known_names(root)}, a folder "
        "or npz file, or hf:NAME."
    )
