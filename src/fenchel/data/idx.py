"""IDX files, the format of MNIST and Fashion-MNIST: a magic number, the sizes, the bytes."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from fenchel.data.file_content import file_content
from fenchel.errors import InputError

__all__ = ["IDX_STEMS", "idx_file", "read_idx", "read_idx_split"]

IDX_STEMS = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Reads an IDX file of unsigned bytes.

    The first four bytes are 0, 0, the type (8 for unsigned bytes) and the number of dimensions; then comes one
    big-endian 32-bit size a dimension, then the content, the last dimension running fastest.

    Args:
        path: The file, compressed if its name ends in ``.gz``.
        dimensions: How many there must be: 3 for images, 1 for labels.

    Returns:
        The content, uint8.

    Raises:
        InputError: If the file cannot be read, its magic number is another one, or it is longer or shorter than its
            header says.
    """
    content = file_content(path)
    expected_magic = (_UNSIGNED_BYTE << 8) + dimensions
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise InputError(
            f"{path} is truncated: {len(content)} bytes, and the header alone is {header}. Fetch it again."
        )
    magic, *sizes = struct.unpack(f">{1 + dimensions}I", content[:header])
    if magic != expected_magic:
        raise InputError(
            f"{path} begins with the magic number {magic}; expected {expected_magic}, that of an IDX file of unsigned "
            f"bytes in {dimensions}-dimensional form. It is corrupt or another file: fetch it again."
        )
    expected = header + math.prod(sizes)
    shape = " x ".join(map(str, sizes))
    if len(content) != expected:
        fault = "truncated" if len(content) < expected else "too long"
        raise InputError(
            f"{path} holds {len(content)} bytes; expected {expected}, as its header says {shape}. "
            f"It is {fault}: fetch it again."
        )
    if expected == header:
        raise InputError(f"{path} is empty: its header says {shape}. Fetch it again.")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).reshape(sizes)


def idx_file(folder: Path, stem: str) -> Path:
    """The file of that name in a folder, compressed or not; the compressed one's name where there is neither."""
    plain = folder / stem
    return plain if plain.is_file() else folder / f"{stem}.gz"


def read_idx_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Reads the images and labels of a split.

    Args:
        folder: Holds ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the same with ``t10k``; with
            ``.gz`` or without.
        split: ``train`` or ``test``.

    Returns:
        Images (N, 1, H, W) uint8 and labels (N,) int64.

    Raises:
        InputError: If a file is missing, truncated or corrupt, or the two do not belong together.
    """
    stem = IDX_STEMS[split]
    image_file = idx_file(folder, f"{stem}-images-idx3-ubyte")
    label_file = idx_file(folder, f"{stem}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{image_file} has {len(images)} images and {label_file} {len(labels)} labels; expected one label an "
            "image. They are not of the same split: fetch both again."
        )
    return images.unsqueeze(1), labels.to(torch.int64)
