"""A preference of the library as log-weights of queries and keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fenchel.nn.preference import AbstractPreference, AttentionInputs

__all__ = ["believed"]


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
