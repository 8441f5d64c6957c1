"""Small inputs for the examples of the catalogue."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fenchel.nn.preference import AbstractPreference, AttentionInputs

M = TypeVar("M", bound=nn.Module)


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Independent normal numbers of a generator."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def drawn_module(generator: torch.Generator, dtype: torch.dtype, module: M) -> M:
    """A module with its parameters drawn as other numbers are, half as large."""
    module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(drawn(generator, dtype, *parameter.shape) / 2)
    return module


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


def believed(preference: AbstractPreference, query: Tensor, key: Tensor, **known: Any) -> Tensor | None:
    """What a preference says of queries (B, H, m, d) and keys (B, H, n, d).

    Args:
        preference: One that reads indices, and what is given of the rest.
        query: For its sizes.
        key: For its size.
        **known: What else :class:`~fenchel.nn.preference.AttentionInputs` has, such as ``query_offset``, the place of
            the first query among the keys, or ``query_inputs`` and ``key_inputs``.

    Returns:
        Log-weights or a mask that broadcasts to (B, H, m, n); None is uniform.
    """
    batch, heads, m = query.shape[:3]
    n, device, dtype = key.shape[2], query.device, query.dtype
    return preference(AttentionInputs(batch, heads, m, n, device, dtype, **known))
