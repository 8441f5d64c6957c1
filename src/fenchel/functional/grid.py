"""Queries of an attention call, cut into blocks of bounded working memory without copying what is broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fenchel.layout import CACHE_BYTES, keep_freed_memory

__all__ = ["Block", "Grid", "grouped", "rows"]


KERNEL_BYTES = 2**26
"""Size of one (queries, n) array on an accelerator: enough work for a kernel, little beside its memory."""


class Block(NamedTuple):
    """A rectangle of queries: some sequences, some heads of the keys with all of their queries' heads, some queries."""

    batch: slice
    heads: slice
    queries: slice

    def of(self, tensor: Tensor) -> Tensor:
        """The part of a tensor (B or 1, H_kv or 1, G or 1, m or 1, ...) in this block, a view."""
        cuts = (self.batch, self.heads, slice(None), self.queries)
        sizes = tensor.shape[:4]
        return tensor[tuple(cut if size > 1 else slice(None) for cut, size in zip(cuts, sizes, strict=True))]

    def of_keys(self, tensor: Tensor) -> Tensor:
        """The part of a tensor (B, H_kv, n, ...) in this block, a view."""
        return tensor[self.batch, self.heads]


class Grid:
    """How the queries of one call share keys: B sequences, H_kv heads of keys, G = H / H_kv queries' heads on each.

    Args:
        query: (B, H, m, d).
        key: (B, H_kv, n, d).
    """

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.batch, heads, self.queries = query.shape[:3]
        self.key_heads, self.keys = key.shape[1:3]
        self.sharing = heads // self.key_heads

    def by_key_head(self, tensor: Tensor) -> Tensor:
        """A tensor (B or 1, H or 1, m or 1, ...) as (B or 1, H_kv or 1, G or 1, m or 1, ...), a view."""
        heads = tensor.shape[1]
        return tensor.unflatten(1, (1, 1) if heads == 1 else (self.key_heads, self.sharing))

    def blocks(self, tensor: Tensor, array_bytes: int | None = None) -> Iterator[list[Block]]:
        """Blocks in each of which an array (queries, n) has a size that is worked on at once, listed by their keys.

        Args:
            tensor: Any with the dtype and device of the work.
            array_bytes: The size of such an array; that of a cache where None.
        """
        keep_freed_memory()
        itemsize = torch.finfo(tensor.dtype).bits // 8
        # A cache's worth for every core, since each works on a part of the block.
        if array_bytes is None:
            array_bytes = (
                torch.get_num_threads() * CACHE_BYTES if tensor.device.type == "cpu" else KERNEL_BYTES
            )
        row = max(1, self.sharing * self.keys * itemsize)
        queries = min(self.queries, max(1, array_bytes // row))
        heads = max(1, array_bytes // (row * queries)) if queries == self.queries else 1
        heads = min(self.key_heads, heads)
        batch = max(1, array_bytes // (row * queries * heads)) if heads == self.key_heads else 1
        for b in range(0, self.batch, batch):
            for h in range(0, self.key_heads, heads):
                sequences, key_heads = (
                    slice(b, min(b + batch, self.batch)),
                    slice(h, min(h + heads, self.key_heads)),
                )
                yield [
                    Block(sequences, key_heads, slice(q, min(q + queries, self.queries)))
                    for q in range(0, self.queries, queries)
                ]


def rows(part: Tensor) -> Tensor:
    """A block's part (b, h, G, r, ...) with its queries in one dimension, (b, h, G·r, ...)."""
    return part.flatten(2, 3)


def grouped(part: Tensor, shape: torch.Size) -> Tensor:
    """A block's part, broadcastable to ``shape`` (b, h, G, r, c), as (b·h or 1, G·r or 1, c), 1 where all are equal."""
    if math.prod(part.shape[:2]) > 1:
        part = part.expand(*shape[:2], *part.shape[2:])
    if math.prod(part.shape[2:4]) > 1:
        part = part.expand(*part.shape[:2], *shape[2:4], part.shape[-1])
    return part.flatten(2, 3).flatten(0, 1)
