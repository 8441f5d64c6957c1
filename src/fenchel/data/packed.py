"""Images packed into one npz file, as pixels or as JPEG files one after the other."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.data.image_dataset import check_labels
from fenchel.data.opened_image import opened_image
from fenchel.data.source import AbstractImageSource, ImageSplit
from fenchel.errors import InputError, MissingExtraError
from fenchel.storage.unpacking import check_unpacking

__all__ = ["JPEG_NOTE", "PackedImages"]

JPEG_NOTE = "JPEG, lossy"
_DAMAGE = (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class PackedImages(AbstractImageSource):
    """An npz file with ``class_names`` and, for each split, one of three things.

    * ``{split}_jpeg``, ``{split}_offsets``, ``{split}_labels``: JPEG files one after the other (uint8), where each
      begins and the last ends (N + 1,), and the classes (N,). Decoded when the split is read, once.
    * ``{split}_images``, ``{split}_labels``: pixels (N, H, W, C) or (N, H, W), uint8.
    * ``images``, ``labels``: the same for a file of training images alone.

    Attributes:
        file: The file. Nothing in it is unpickled; its archive has a checksum for every array.
    """

    file: Path

    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split."""
        with self._opened() as archive:
            prefix = self._prefix(archive, split)
            labels = self._integers(archive, f"{prefix}labels")
            names = self._names(archive)
            if f"{prefix}jpeg" in archive:
                encoded = self._array(archive, f"{prefix}jpeg")
                offsets = self._integers(archive, f"{prefix}offsets")
                images, note = self._decoded(encoded, offsets, f"{prefix}jpeg"), JPEG_NOTE
            else:
                images, note = self._pixels(archive, f"{prefix}images"), ""
        if len(images) != len(labels):
            raise InputError(
                f"{self.file} has {len(images)} {split} images and {len(labels)} labels; expected one label an image. "
                "Pack it again."
            )
        check_labels(labels, len(names), str(self.file))
        return ImageSplit(images, labels, names, note)

    def training_files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.file,)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            import numpy as np
        except ImportError:
            raise MissingExtraError("numpy", "train") from None
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self.file.open("rb"))
                archive = np.load(file, allow_pickle=False)
            except FileNotFoundError:
                raise InputError(f"{self.file} does not exist. Give the path of an npz file.") from None
            except _DAMAGE as error:
                raise InputError(
                    f"{self.file} is truncated or corrupt: {_reason(error)}; expected an npz file. Fetch it again."
                ) from None
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(
                    f"{self.file} is a single array; expected an npz file with images and labels."
                )
            yield stack.enter_context(archive)

    def _prefix(self, archive: Any, split: str) -> str:
        for prefix in (f"{split}_", "") if split == "train" else (f"{split}_",):
            if f"{prefix}jpeg" in archive or f"{prefix}images" in archive:
                return prefix
        raise InputError(
            f"{self.file} has no {split} images: neither '{split}_jpeg' nor '{split}_images'; it has "
            f"{', '.join(map(repr, archive.files)) or 'nothing'}. Give a file with both splits."
        )

    def _array(self, archive: Any, name: str) -> Any:
        if name not in archive:
            raise InputError(
                f"{self.file} has no {name!r}; it has {', '.join(map(repr, archive.files))}. Pack it again."
            )
        try:
            _check_announced(archive, name, f"{self.file}: {name!r}")
            return archive[name]
        except InputError:
            raise
        except Exception as error:  # a damaged header can make whatever reads it fail
            raise InputError(
                f"{self.file}: {name!r} is truncated or corrupt: {_reason(error)}. Fetch the file again."
            ) from None

    def _names(self, archive: Any) -> tuple[str, ...]:
        names = self._array(archive, "class_names")
        if names.ndim != 1 or not names.size:
            raise InputError(
                f"{self.file}: 'class_names' has shape {names.shape}; expected a name for each class, in one "
                "dimension. Pack it again."
            )
        return tuple(map(str, names.tolist()))

    def _integers(self, archive: Any, name: str) -> Tensor:
        values = self._array(archive, name)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise InputError(
                f"{self.file}: {name!r} has shape {values.shape} and type {values.dtype}; expected integers in one "
                "dimension. Pack it again."
            )
        return torch.from_numpy(values.astype("int64"))

    def _pixels(self, archive: Any, name: str) -> Tensor:
        pixels = self._array(archive, name)
        if pixels.dtype != "uint8" or pixels.ndim not in (3, 4) or not pixels.size:
            raise InputError(
                f"{self.file}: {name!r} has shape {pixels.shape} and type {pixels.dtype}; expected bytes "
                "(N, H, W, C) or (N, H, W). Pack it again."
            )
        images = torch.from_numpy(pixels)
        return images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()

    def _decoded(self, encoded: Any, offsets: Tensor, name: str) -> Tensor:
        where = f"{self.file}: {name!r}"
        _check_offsets(offsets, len(encoded), where)
        bounds = offsets.tolist()
        content = memoryview(encoded)
        decoded, first = bytearray(), (0, 0, 0)
        for place, (start, end) in enumerate(pairwise(bounds)):
            try:
                with opened_image(content[start:end], formats=("JPEG",)) as picture:
                    shape = (picture.height, picture.width, len(picture.getbands()))
                    pixels = picture.tobytes()
            except (OSError, ValueError, SyntaxError) as error:
                if isinstance(error, InputError):
                    raise InputError(f"{where}: image {place} {error}") from None
                raise InputError(
                    f"{where}: image {place} is corrupt: {_reason(error)}. Fetch the file again."
                ) from None
            first = first if place else shape
            if first != shape:
                raise InputError(
                    f"{where}: image {place} has shape {shape} and image 0 {first}; expected images "
                    "of one size. Pack them again."
                )
            decoded += pixels
            check_unpacking(where, len(decoded), end)
        return (
            torch.frombuffer(decoded, dtype=torch.uint8).reshape(-1, *first).permute(0, 3, 1, 2).contiguous()
        )


def _check_announced(archive: Any, name: str, where: str) -> None:
    """Compares what an array's header announces with what the archive holds, before room is made for it."""
    from numpy.lib import format as npy

    inner = next(one for one in archive.zip.infolist() if one.filename in (name, f"{name}.npy"))
    check_unpacking(where, inner.file_size, inner.compress_size)
    with archive.zip.open(inner) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
        announced = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or (not dtype.hasobject and announced != inner.file_size - file.tell()):
            raise ValueError(
                f"its header says {' x '.join(map(str, shape))} of {dtype}, and there are {inner.file_size:,} bytes"
            )


def _check_offsets(offsets: Tensor, size: int, where: str) -> None:
    rising = len(offsets) > 1 and bool((offsets.diff() > 0).all())
    if not rising or int(offsets[0]) != 0 or int(offsets[-1]) != size:
        raise InputError(
            f"{where}: the offsets do not run from 0 up to its {size} bytes; expected where each image begins, and the "
            "end. Fetch the file again."
        )


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
