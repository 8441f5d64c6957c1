"""Captioned images from a folder that packs them: JPEG files in one npz file, captions in JSON beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fenchel.arguments import checked, shown
from fenchel.data.caption_hub import hub_captions
from fenchel.data.captioned_images import CaptionedImages
from fenchel.data.file_content import file_content
from fenchel.data.hub_rows import HUB_PREFIX
from fenchel.data.npz_file import NpzFile
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError
from fenchel.storage import parse_json

__all__ = ["load_captions"]

_IMAGES, _CAPTIONS = "images_128.npz", "captions.json"
_FOLDER = TextFolder(
    "coco-mini",
    "captions_coco_mini",
    (_IMAGES, _CAPTIONS),
    "https://cocodataset.org/#download",
)
_TOO_FEW = 10_000


def load_captions(name_or_path: str | Path, *, root: str | Path | None = None) -> CaptionedImages:
    """Reads captioned images. Nothing is downloaded but with ``hf:``.

    Args:
        name_or_path: ``coco-mini``, found in the folder ``captions_coco_mini`` under ``root``; the path of a folder
            that holds ``images_128.npz`` and ``captions.json`` as it does; or ``hf:NAME``, a data set of the
            ``datasets`` library with a column of images and one of captions.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Returns:
        All images. Where they are few, the note says that a captioner can only learn them by heart.

    Raises:
        InputError: If a file is missing or damaged, or an image is none or is truncated, naming it.
        MissingExtraError: If Pillow or numpy is not installed.
    """
    name = str(checked("data_path", name_or_path, name="data"))
    read = hub_captions(name) if name.startswith(HUB_PREFIX) else _read(_FOLDER.found(name, root), name)
    if len(read) >= _TOO_FEW:
        return read
    few = (
        f"{len(read)} images: enough to learn them by heart, far too few to caption others; no figure says how good a "
        "captioner is"
    )
    return CaptionedImages(
        read.images, read.captions, read.ids, name, "; ".join(filter(None, (read.note, few)))
    )


def _read(folder: Path, name: str) -> CaptionedImages:
    file = _FOLDER.file(folder, _CAPTIONS)
    try:
        listed = parse_json(file_content(file))
    except InputError as error:
        if str(error).startswith(str(file)):
            raise
        raise InputError(f"{file} is no list of captions: {error}. Fetch it again.") from None
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{file} is {shown(listed)}; expected a list with an entry for each image.")
    packed = NpzFile(_FOLDER.file(folder, _IMAGES))
    with packed.opened() as archive:
        ids = [str(one) for one in packed.integers(archive, "ids").tolist()]
        offsets = packed.integers(archive, "offsets")
        images = tuple(
            _in_colour(image)
            for image in packed.jpegs(packed.array(archive, "jpeg"), offsets, "jpeg", called=ids)
        )
    if not len(images) == len(ids) == len(listed):
        raise InputError(
            f"{folder}: {_IMAGES} has {len(images)} images with {len(ids)} names, and {_CAPTIONS} {len(listed)} "
            "entries; expected as many of each. Fetch both files again."
        )
    captions = tuple(_captions(entry, one, file) for entry, one in zip(listed, ids, strict=True))
    return CaptionedImages(images, captions, tuple(ids), name, "JPEG of at most 128 pixels a side, lossy")


def _captions(entry: Any, one: str, file: Path) -> tuple[str, ...]:
    found = entry.get("captions") if isinstance(entry, dict) else None
    if str(entry.get("id") if isinstance(entry, dict) else None) != one:
        raise InputError(
            f"{file} has {shown(entry)} where the images have {one}; expected an entry for each image, with its id, in "
            "the same order. Fetch both files again."
        )
    if not isinstance(found, list) or not all(isinstance(text, str) and text.strip() for text in found):
        raise InputError(
            f"{file}: the captions of image {one} are {shown(found)}; expected a list of sentences."
        )
    return tuple(" ".join(text.split()) for text in found)


def _in_colour(image: Tensor) -> Tensor:
    """The same image with three channels."""
    return image.expand(3, -1, -1) if image.shape[0] == 1 else image
