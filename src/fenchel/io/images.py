"""Images as documents, and batches of the pixels that a processor makes of them."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fenchel.arguments import checked, reason_of
from fenchel.errors import InputError, MissingExtraError
from fenchel.io.batches import Batch, Cursor, patch_images
from fenchel.io.shard import Shard

__all__ = ["SUFFIXES", "ImageBatches", "ImageFiles", "open_images"]

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
            raise InputError(f"{path} can no longer be read: {reason_of(error)}") from error


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
            wrong.append(f"{path.name} ({reason_of(error)})")
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
        raise InputError(f"{place} cannot be read: {reason_of(error)}") from error
    paths = tuple(path for path in files if path.suffix.lower() in SUFFIXES)
    if not paths:
        inside = f"; it has {len(files)} other files" if files else ""
        raise InputError(
            f"{place} has no image{inside}. Expected files that end in {', '.join(SUFFIXES)}, not in folders below it."
        )
    return paths


_LONGEST_SIDE = 4096


def _decoded(content: bytes, mode: str) -> Any:
    """An image of Pillow. A few hundred bytes can claim any size, so it is read before the pixels are."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError("PIL", "report") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", Image.DecompressionBombWarning
            )  # what it warns of is refused below
            with Image.open(io.BytesIO(content)) as picture:
                if max(picture.size) > _LONGEST_SIDE:
                    raise InputError(
                        f"has {picture.height:,} x {picture.width:,} pixels; expected at most {_LONGEST_SIDE:,} a "
                        "side. Shrink the images first."
                    )
                if picture.format == "PNG":
                    # Its decoder is content once it has all pixels, whatever became of checksums and of the end.
                    with Image.open(io.BytesIO(content)) as again:
                        again.verify()
                return picture.convert(mode)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError("not an image") from None
    except Exception as error:  # decoders of broken files fail in every way there is
        raise InputError(f"broken: {reason_of(error)}") from error


_BEGINNING = Cursor()
_ONLY_SHARD = Shard()


class ImageBatches:
    """Images, processed as the model was trained with them; each counts as a document.

    Args:
        images: The images.
        processor: An image processor of ``transformers``, called with a list of images. Another one may say in
            ``input_name`` what the model calls its images.
        config: The model's configuration; says how many channels images have, and how large patches are.
        batch_size: Images in a batch.
        shard: Which of the images to take.

    Raises:
        InputError: If an option is out of range; while reading, if the processor does not take an image.
    """

    max_length = None
    stride = None
    reads = "images"

    def __init__(
        self,
        images: ImageFiles,
        processor: Any,
        *,
        config: Any = None,
        batch_size: int = 8,
        shard: Shard = _ONLY_SHARD,
    ) -> None:
        self._name = str(getattr(processor, "input_name", "pixel_values"))
        self._images, self._processor, self._config = images, processor, config
        self._mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        self.batch_size = checked("batch_size", batch_size)
        self.shard = shard
        self.description, self.text_sha256 = images.description, images.sha256

    def batches(self, start: Cursor = _BEGINNING) -> Iterator[Batch]:
        """Gives the batches from a place on.

        Args:
            start: ``Batch.after`` of the last batch that was dealt with. Default: the beginning.

        Yields:
            Batches of images of one size.

        Raises:
            InputError: If an image cannot be read or processed.
        """
        own = [number for number in range(len(self._images)) if self.shard.takes(number)]
        left = [number for number in own if number >= start.document]
        done = len(own) - len(left)
        for begin in range(0, len(left), self.batch_size):
            numbers = left[begin : begin + self.batch_size]
            pixels = self._pixels(numbers)
            done += len(numbers)
            yield Batch(
                inputs={self._name: pixels},
                counted=None,
                counted_decoder=None,
                documents=tuple(number + 1 for number in numbers),
                windows=(1,) * len(numbers),
                tokens=len(numbers),
                after=Cursor(
                    numbers[-1] + 1,
                    0,
                    start.tokens + begin + len(numbers),
                    start.documents + begin + len(numbers),
                ),
                fraction=done / len(own),
                pictures=patch_images(pixels, self._config, self._processor),
            )

    def _pixels(self, numbers: list[int]) -> Tensor:
        images = [self._images.read(number, self._mode) for number in numbers]
        names = ", ".join(self._images.name(number) for number in numbers[:3])
        try:
            found = self._processor(images=images, return_tensors="pt")[self._name]
        except Exception as error:  # processors are many, and fail in as many ways
            raise InputError(
                f"the image processor {type(self._processor).__name__} does not take {names}: {reason_of(error)}"
            ) from error
        if not isinstance(found, Tensor) or found.dim() != 4 or len(found) != len(numbers):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the image processor {type(self._processor).__name__} made pixel_values {shape} of "
                f"{len(numbers)} images; "
                f"expected ({len(numbers)}, channels, height, width)"
            )
        return found
