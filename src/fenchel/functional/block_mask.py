"""Which blocks of scores a fused kernel can leave out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

__all__ = ["MaskMod", "block_mask"]

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of the indices (b, h, q, k), True = attend, as flex attention takes it."""


def block_mask(
    mask_mod: MaskMod, batch: int, heads: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    """The block mask of a mask function, made once where that is possible.

    It has one example, or one head, where the function does not read that index. A function that depends on nothing
    but its indices and numbers, as those of positions do, has its mask kept; one that reads a tensor, such as the
    padding of a batch, does not, since the tensor may change.

    Args:
        mask_mod: Function of indices.
        batch: B.
        heads: H.
        queries: m.
        keys: n.
        device: Where the mask is wanted.
    """
    sizes = (*_read(mask_mod, batch, heads, device), queries, keys)
    name = None if torch.compiler.is_compiling() else identity(mask_mod)
    if name is None:
        return _made(mask_mod, *sizes, device)
    return _kept(_Named(name, mask_mod), *sizes, device)


def _read(mask_mod: MaskMod, batch: int, heads: int, device: torch.device) -> tuple[int, int]:
    """B and H, each 1 if the mask does not read that index; seen from the shape that indices broadcast to."""
    b = torch.arange(batch, device=device).reshape(-1, 1)
    h = torch.arange(heads, device=device).reshape(1, -1)
    first = torch.zeros(1, 1, dtype=torch.long, device=device)
    shape = mask_mod(b, h, first, first).shape
    return (1, 1, *shape)[-2], (1, 1, *shape)[-1]


def identity(value: Any) -> Hashable | None:
    """What tells functions apart that were made by the same code: all that they captured; None if that has a tensor.

    Example:
        >>> def later_than(n):
        ...     return lambda k: k > n
        >>> identity(later_than(2)) == identity(later_than(2)) != identity(later_than(3))
        True
        >>> identity(later_than(torch.tensor(2))) is None
        True
    """
    if isinstance(value, FunctionType):
        captured = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = [*captured, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return _identities(value.__code__, parts)
    if isinstance(value, tuple | list):
        return _identities(type(value), value)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        # True and 1 are equal, and would be taken for each other.
        return (type(value), value)
    return None


def _identities(kind: Hashable, parts: list[Any] | tuple[Any, ...]) -> Hashable | None:
    known = tuple(identity(part) for part in parts)
    return None if None in known else (kind, known)


@dataclass(frozen=True)
class _Named:
    name: Hashable
    function: MaskMod = field(compare=False)


@lru_cache(maxsize=64)
def _kept(named: _Named, batch: int, heads: int, queries: int, keys: int, device: torch.device) -> BlockMask:
    # A tensor of inference mode could never be used in training afterwards.
    with torch.inference_mode(False):
        return _made(named.function, batch, heads, queries, keys, device)


def _made(
    mask_mod: MaskMod, batch: int, heads: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    # Uncompiled it would evaluate all B·H·m·n entries of the mask at once.
    is_fused = device.type == "cuda" and not torch.compiler.is_compiling()
    create = _compiled_create() if is_fused else create_block_mask
    return create(mask_mod, batch, heads, queries, keys, device=device)


@cache
def _compiled_create() -> Callable[..., BlockMask]:
    return torch.compile(create_block_mask)
