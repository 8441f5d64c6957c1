"""Images packed into one npz file, as pixels or as JPEG files one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.data.image_dataset import check_labels
from fenchel.data.npz_file import NpzFile
from fenchel.data.source import AbstractImageSource, ImageSplit
from fenchel.errors import InputError

__all__ = ["JPEG_NOTE", "PackedImages"]

JPEG_NOTE = "JPEG, lossy"


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

    @property
    def _packed(self) -> NpzFile:
        return NpzFile(self.file)

    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split."""
        with self._packed.opened() as archive:
            prefix = self._prefix(archive, split)
            labels = self._packed.integers(archive, f"{prefix}labels")
            names = self._names(archive)
            if f"{prefix}jpeg" in archive:
                encoded = self._packed.array(archive, f"{prefix}jpeg")
                offsets = self._packed.integers(archive, f"{prefix}offsets")
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

    def _prefix(self, archive: Any, split: str) -> str:
        for prefix in (f"{split}_", "") if split == "train" else (f"{split}_",):
            if f"{prefix}jpeg" in archive or f"{prefix}images" in archive:
                return prefix
        raise InputError(
            f"{self.file} has no {split} images: neither '{split}_jpeg' nor '{split}_images'; it has "
            f"{', '.join(map(repr, archive.files)) or 'nothing'}. Give a file with both splits."
        )

    def _names(self, archive: Any) -> tuple[str, ...]:
        names = self._packed.array(archive, "class_names")
        if names.ndim != 1 or not names.size:
            raise InputError(
                f"{self.file}: 'class_names' has shape {names.shape}; expected a name for each class, in one "
                "dimension. Pack it again."
            )
        return tuple(map(str, names.tolist()))

    def _pixels(self, archive: Any, name: str) -> Tensor:
        pixels = self._packed.array(archive, name)
        if pixels.dtype != "uint8" or pixels.ndim not in (3, 4) or not pixels.size:
            raise InputError(
                f"{self.file}: {name!r} has shape {pixels.shape} and type {pixels.dtype}; expected bytes "
                "(N, H, W, C) or (N, H, W). Pack it again."
            )
        images = torch.from_numpy(pixels)
        return images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()

    def _decoded(self, encoded: Any, offsets: Tensor, name: str) -> Tensor:
        images: list[Tensor] = []
        for place, image in enumerate(self._packed.jpegs(encoded, offsets, name)):
            images.append(image)
            shape, first = ((one.shape[1], one.shape[2], one.shape[0]) for one in (image, images[0]))
            if first != shape:
                raise InputError(
                    f"{self.file}: {name!r}: image {place} has shape {shape} and image 0 {first}; expected images "
                    "of one size. Pack them again."
                )
        return torch.stack(images).contiguous()
