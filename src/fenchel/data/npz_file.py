"""One npz file of arrays, read without unpickling anything, or an error that says what is wrong with it."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.data.opened_image import opened_image
from fenchel.errors import InputError, MissingExtraError
from fenchel.storage.unpacking import check_unpacking

__all__ = ["NpzFile", "damage_of"]

_DAMAGE = (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class NpzFile:
    """An npz file; its archive has a checksum for every array.

    Attributes:
        file: The file.
    """

    file: Path

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The archive, as numpy has it.

        Raises:
            InputError: If there is no such file, or it is no npz file.
            MissingExtraError: If numpy is not installed.
        """
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
                    f"{self.file} is truncated or corrupt: {damage_of(error)}; expected an npz file. Fetch it again."
                ) from None
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(
                    f"{self.file} is a single array; expected an npz file with images and labels."
                )
            yield stack.enter_context(archive)

    def array(self, archive: Any, name: str) -> Any:
        """An array of numpy.

        Args:
            archive: From ``opened``.
            name: Of the array.

        Raises:
            InputError: If it is not there, or damaged.
        """
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
                f"{self.file}: {name!r} is truncated or corrupt: {damage_of(error)}. Fetch the file again."
            ) from None

    def integers(self, archive: Any, name: str) -> Tensor:
        """An array of whole numbers, int64 (N,).

        Raises:
            InputError: If it is something else.
        """
        values = self.array(archive, name)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise InputError(
                f"{self.file}: {name!r} has shape {values.shape} and type {values.dtype}; expected integers in one "
                "dimension. Pack it again."
            )
        return torch.from_numpy(values.astype("int64"))

    def jpegs(
        self, encoded: Any, offsets: Tensor, name: str, *, called: Sequence[str] = ()
    ) -> Iterator[Tensor]:
        """Images out of JPEG files that lie one after the other, each (C, H, W), uint8.

        Args:
            encoded: Their bytes.
            offsets: Where each begins and the last ends (N + 1,).
            name: Of the array of bytes, for messages.
            called: What the images are called in messages besides their places, if anything.

        Raises:
            InputError: If one cannot be decoded, with its number.
        """
        where = f"{self.file}: {name!r}"
        _check_offsets(offsets, len(encoded), where)
        content, unpacked = memoryview(encoded), 0
        for place, (start, end) in enumerate(pairwise(offsets.tolist())):
            one = f"image {place}" + (f" ({called[place]})" if place < len(called) else "")
            try:
                with opened_image(content[start:end], formats=("JPEG",)) as picture:
                    shape = (picture.height, picture.width, len(picture.getbands()))
                    pixels = bytearray(picture.tobytes())
            except (OSError, ValueError, SyntaxError) as error:
                if isinstance(error, InputError):
                    raise InputError(f"{where}: {one} {error}") from None
                raise InputError(
                    f"{where}: {one} is corrupt: {damage_of(error)}. Fetch the file again."
                ) from None
            unpacked += len(pixels)
            check_unpacking(where, unpacked, end)
            yield torch.frombuffer(pixels, dtype=torch.uint8).reshape(shape).permute(2, 0, 1)


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


def damage_of(error: Exception) -> str:
    """The first line of what a library says of damage."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
