"""What tells tensors apart."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping

from torch import Tensor

__all__ = ["tensors_digest"]


def tensors_digest(batches: Iterable[Mapping[str, Tensor]]) -> str:
    """SHA-256 of tensors with their names, shapes and types.

    Args:
        batches: Dense tensors by name.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> import torch
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
