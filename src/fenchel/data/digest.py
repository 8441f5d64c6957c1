"""What tells two sets of labelled images apart, whatever format they came in."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

__all__ = ["image_digest", "tensors_digest"]


def image_digest(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of the shape, the labels and the pixels.

    Args:
        images: Pixels (N, C, H, W), uint8.
        labels: Class of each image (N,), int64.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> images, labels = torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([3])
        >>> image_digest(images, labels) == image_digest(images.clone(), labels)
        True
        >>> image_digest(images, labels) == image_digest(images, labels + 1)
        False
    """
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    for tensor in (labels.to(torch.int64), images):
        _add(digest, tensor)
    return digest.hexdigest()


def tensors_digest(batches: Iterable[Mapping[str, Tensor]]) -> str:
    """SHA-256 of tensors with their names, shapes and types.

    Args:
        batches: Dense tensors by name.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> one = [{"x": torch.zeros(2)}]
        >>> tensors_digest(one) == tensors_digest([{"x": torch.zeros(2)}])
        True
        >>> tensors_digest(one) == tensors_digest([{"y": torch.zeros(2)}])
        False
    """
    digest = hashlib.sha256()
    for batch in batches:
        for name, tensor in sorted(batch.items()):
            digest.update(f"{len(name)} {name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
            _add(digest, tensor)
        digest.update(b";")
    return digest.hexdigest()


def _add(digest: hashlib._Hash, tensor: Tensor) -> None:
    kept = tensor.detach().cpu().contiguous()
    # Tensors show their memory through numpy only, which reading needs for nothing else.
    if kept.numel():
        digest.update((ctypes.c_ubyte * (kept.numel() * kept.element_size())).from_address(kept.data_ptr()))
