"""Images of a folder, in the order of their names, each of which can be read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.arguments import checked
from fenchel.data.opened_image import opened_image
from fenchel.errors import InputError, MissingExtraError

__all__ = ["SUFFIXES", "ImageFiles", "open_images"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings of the files that are taken for images."""

_NAMED = 3


@dataclass(frozen=True)
class ImageFiles:
    """Images that were all seen to be readable.

    Attributes:
        description: The folder or file as it was given.
        paths: The files, in the order of their names.
        sha256: Of the names and bytes of all of them.
    """

    description: str
    paths: tuple[Path, ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, number: int) -> str:
        """What an image (from 0) is called in messages."""
        return self.paths[number].name

    def read(self, number: int, mode: str = "RGB") -> Any:
        """One image, decoded; of several frames the first.

        Args:
            number: Which, from 0.
            mode: Of Pillow, such as ``RGB`` or ``L``.

        Returns:
            An image of Pillow.

        Raises:
            InputError: If it can no longer be read.
        """
        path = self.paths[number]
        try:
            return _decoded(path.read_bytes(), mode)
        except (OSError, InputError) as error:
            raise InputError(f"{path} can no longer be read: {_reason(error)}") from error


def open_images(source: str | Path) -> ImageFiles:
    """The images of a folder, or one image.

    Args:
        source: A folder, whose files with the ending of an image are taken (not those of folders in it), or a file.

    Raises:
        InputError: If there is no such folder, it has no image, or files of it cannot be read as images.
        MissingExtraError: If Pillow is not installed.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (4, 3)).save(f"{folder}/a.png")
        ...     images = open_images(folder)
        ...     images.read(0).size
        (4, 3)
    """
    place: Path = checked("images", source)
    paths = _paths(place)
    digest, wrong = hashlib.sha256(), []
    for path in paths:
        try:
            content = path.read_bytes()
            _decoded(content, "RGB")
        except (OSError, InputError) as error:
            wrong.append(f"{path.name} ({_reason(error)})")
            continue
        digest.update(f"{len(path.name)} {path.name} {len(content)} ".encode())
        digest.update(content)
    if wrong:
        named = ", ".join(wrong[:_NAMED]) + (
            f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        )
        raise InputError(
            f"{len(wrong)} of {len(paths)} images in {place} cannot be read: {named}. Mend or remove them."
        )
    return ImageFiles(str(source), paths, digest.hexdigest())


def _paths(place: Path) -> tuple[Path, ...]:
    if place.is_file():
        return (place,)
    if not place.is_dir():
        raise InputError(f"there is no folder {place}. Give a folder of images, or one image.")
    try:
        files = sorted(path for path in place.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"{place} cannot be read: {_reason(error)}") from error
    paths = tuple(path for path in files if path.suffix.lower() in SUFFIXES)
    if not paths:
        inside = f"; it has {len(files)} other files" if files else ""
        raise InputError(
            f"{place} has no image{inside}. Expected files that end in {', '.join(SUFFIXES)}, not in folders below it."
        )
    return paths


def _decoded(content: bytes, mode: str) -> Any:
    try:
        with opened_image(content) as picture:
            return picture.convert(mode)
    except (InputError, MissingExtraError, OSError):
        raise
    except Exception as error:  # decoders of broken files fail in every way there is
        raise InputError(f"broken: {error}") from error


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image"
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
