"""Small inputs for the examples of the catalogue."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["drawn", "heads"]


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Independent normal numbers of a generator."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def heads(
    generator: torch.Generator,
    dtype: torch.dtype,
    *,
    queries: int = 6,
    keys: int | None = None,
    dim: int = 4,
    value_dim: int | None = None,
    batch: int = 1,
    count: int = 2,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query (B, H, m, d), key (B, H, n, d) and value (B, H, n, d_v); as many keys as queries where nothing is said."""
    n = queries if keys is None else keys
    return (
        drawn(generator, dtype, batch, count, queries, dim),
        drawn(generator, dtype, batch, count, n, dim),
        drawn(generator, dtype, batch, count, n, value_dim or dim),
    )
