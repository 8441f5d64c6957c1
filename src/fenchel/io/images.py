"""Images of a folder, of folders named by class, of a Parquet file, or one image; and batches of them."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fenchel.arguments import checked, reason_of
from fenchel.errors import InputError, require_packages
from fenchel.io.batches import BEGINNING, Batch, Cursor, PatchImages
from fenchel.io.documents import file_sha256, listed_names, readable_file, table_rows, text_of
from fenchel.io.runs import WHOLE, Shard

# Endings of the files that are read as images.
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

_NAMED, _LONGEST_SIDE = 3, 4096


@dataclass(frozen=True)
class ImageFiles:
    """Images, each of which has been decoded once.

    Attributes:
        description: The folder or file as the user gave it.
        paths: The files, in the order of their names; of a table the rows, as if they were files in it.
        sha256: SHA-256 of the names and bytes of all files; of a table, of the file.
        labels: The class of each image, if known.
        stored: The bytes of each image, if they are rows of a table.
    """

    description: str
    paths: tuple[Path, ...]
    sha256: str
    labels: tuple[str, ...] | None = None
    stored: tuple[bytes, ...] | None = field(default=None, repr=False)

    def read(self, number: int, mode: str = "RGB") -> Any:
        """The decoded image of Pillow; the first of several frames.

        Args:
            number: Index of the image, from 0.
            mode: Mode of Pillow, such as ``RGB`` or ``L``.

        Raises:
            InputError: If it can no longer be read.
        """
        try:
            return _picture(self.content(number), mode)
        except (OSError, InputError) as error:
            raise InputError(f"{self.paths[number]} can no longer be read: {reason_of(error)}") from error

    def content(self, number: int) -> bytes:
        """The bytes of an image."""
        return self.paths[number].read_bytes() if self.stored is None else self.stored[number]


def open_images(source: str | Path, *, label_column: str | None = None) -> ImageFiles:
    """Open the images of a folder, of its folders named by class, or of a table; or one image.

    Args:
        source: A folder of images, or of folders of images named by class; a Parquet file with a column of images as
            the ``datasets`` library writes it; or an image.
        label_column: Column of a Parquet file that holds the class of each image, by name or number.

    Raises:
        InputError: If the folder does not exist, has no image, or has files that cannot be read as images; or if a
            column is missing or named without a table.
        MissingExtraError: If Pillow is not installed.
    """
    place: Path = checked("images", source)
    if place.suffix.lower() == ".parquet" and not place.is_dir():
        return _images_of_table(place, str(source), label_column)
    if label_column is not None:
        raise InputError(
            f"label column {label_column!r} was given, but {place} is not a table. Leave it out and use one folder "
            "per class, or give a parquet file."
        )
    paths, labels = _image_paths(place)
    names = [path.name if labels is None else f"{path.parent.name}/{path.name}" for path in paths]
    result = ImageFiles(str(source), paths, "", labels)
    return replace(result, sha256=_readable(result, names, place))


def _readable(images: ImageFiles, names: Sequence[str], place: Path) -> str:
    """Decode every image, and return the digest of their names and bytes.

    Raises:
        InputError: Naming the first images that cannot be read.
    """
    digest, wrong = hashlib.sha256(), []
    for number, name in enumerate(names):
        try:
            content = images.content(number)
            _picture(content, "RGB")
        except (OSError, InputError) as error:
            wrong.append(f"{name} ({reason_of(error)})")
            continue
        digest.update(f"{len(name)} {name} {len(content)} ".encode())
        digest.update(content)
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise InputError(
            f"{len(wrong)} of {len(names)} images in {place} cannot be read: {', '.join(wrong[:_NAMED])}{more}. Fix "
            "or remove them."
        )
    return digest.hexdigest()


def _image_paths(place: Path) -> tuple[tuple[Path, ...], tuple[str, ...] | None]:
    """The image files, and the classes by which their folders are named."""
    if place.is_file():
        return (place,), None
    if not place.is_dir():
        raise InputError(f"there is no folder {place}. Give a folder of images, or one image.")
    try:
        files = sorted(place.iterdir())
        if paths := _with_suffix(files):
            return paths, None
        folders = [path for path in files if path.is_dir()]
        paths = tuple(path for folder in folders for path in _with_suffix(sorted(folder.iterdir())))
    except OSError as error:
        raise InputError(f"{place} cannot be read: {reason_of(error)}") from error
    if not paths:
        others = sum(path.is_file() for path in files)
        inside = f"; it has {others} other files" if others else ""
        raise InputError(
            f"{place} has no image{inside}. Expected files that end in {', '.join(SUFFIXES)}, in it or in one folder "
            "per class."
        )
    return paths, tuple(path.parent.name for path in paths)


def _with_suffix(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _images_of_table(path: Path, description: str, label_column: str | None) -> ImageFiles:
    rows = {f"row {number}": row for number, row, _ in table_rows(readable_file(path))}
    if not rows:
        raise InputError(f"{path} has no rows. Give a parquet file with at least one image.")
    # The datasets library writes an image as its bytes and its path.
    column = next((name for row in rows.values() for name, value in row.items() if _has_bytes(value)), None)
    if column is None:
        raise InputError(
            f"{path} has no column of images, such as the datasets library writes; it has "
            f"{listed_names(rows['row 1'])}. Give a parquet file with one, or a folder of images."
        )
    labels = None
    if label_column is not None:
        where = {name: f"{name} of {path}" for name in rows}
        labels = tuple(text_of(row, label_column, where[name], label=True) for name, row in rows.items())
    stored = tuple((row[column] or {}).get("bytes") or b"" for row in rows.values())
    paths = tuple(path / name for name in rows)
    images = ImageFiles(description, paths, file_sha256(path), labels, stored)
    _readable(images, list(rows), path)
    return images


def _has_bytes(value: Any) -> bool:
    return isinstance(value, dict) and "bytes" in value


def _picture(content: bytes, mode: str) -> Any:
    """An image of Pillow. The size is checked before decoding, since a few hundred bytes can claim any size."""
    require_packages("report", "PIL")
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # such sizes are refused below
            with Image.open(io.BytesIO(content)) as picture:
                if max(picture.size) > _LONGEST_SIDE:
                    raise InputError(
                        f"{picture.height:,} x {picture.width:,} pixels; a side may have at most {_LONGEST_SIDE:,}"
                    )
                if picture.format == "PNG":
                    # Its decoder checks neither checksums nor the end of the file.
                    with Image.open(io.BytesIO(content)) as again:
                        again.verify()
                return picture.convert(mode)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError("not an image") from None
    except Exception as error:  # decoders raise exceptions of many types on broken files
        raise InputError(f"broken: {reason_of(error)}") from error


class ImageBatches:
    """Batches of images, processed by the model's image processor; each image is a document.

    Args:
        images: The images.
        processor: An image processor of ``transformers``, called with a list of images; ``input_name``, if it has one,
            is the model's argument for them.
        config: The model's configuration, with the number of channels and the size of patches.
        batch_size: Number of images in a batch.
        shard: The share of the images.

    Raises:
        InputError: If an option is out of range; while reading, if the processor rejects an image.
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
        shard: Shard = WHOLE,
    ) -> None:
        self._name = str(getattr(processor, "input_name", "pixel_values"))
        self._images, self._processor, self._config = images, processor, config
        self._mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        self.batch_size = checked("batch_size", batch_size)
        self.shard = shard
        self.description, self.text_sha256 = images.description, images.sha256

    def batches(self, start: Cursor = BEGINNING) -> Iterator[Batch]:
        """The batches from a place on.

        Args:
            start: ``Batch.after`` of the previous batch. Default: the beginning.

        Yields:
            Batches of images of one size.

        Raises:
            InputError: If an image cannot be read or processed.
        """
        taken = [number for number in range(len(self._images.paths)) if self.shard.takes(number)]
        left = [number for number in taken if number >= start.document]
        for begin in range(0, len(left), self.batch_size):
            numbers = left[begin : begin + self.batch_size]
            pixels, done = self._pixels(numbers), begin + len(numbers)
            yield Batch(
                inputs={self._name: pixels},
                counted=None,
                counted_decoder=None,
                documents=tuple(number + 1 for number in numbers),
                windows=(1,) * len(numbers),
                tokens=len(numbers),
                after=Cursor(numbers[-1] + 1, 0, start.tokens + done, start.documents + done),
                fraction=(len(taken) - len(left) + done) / len(taken),
                pictures=PatchImages.of(pixels, self._config, self._processor),
            )

    def _pixels(self, numbers: list[int]) -> Tensor:
        images = [self._images.read(number, self._mode) for number in numbers]
        names = ", ".join(self._images.paths[number].name for number in numbers[:3])
        try:
            result = self._processor(images=images, return_tensors="pt")[self._name]
        except Exception as error:  # processors are many, and fail in as many ways
            raise InputError(
                f"the image processor {type(self._processor).__name__} does not take {names}: {reason_of(error)}"
            ) from error
        if not isinstance(result, Tensor) or result.dim() != 4 or len(result) != len(numbers):
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"the image processor {type(self._processor).__name__} returned pixel_values {shape} for "
                f"{len(numbers)} images; expected ({len(numbers)}, channels, height, width)"
            )
        return result
