"""A preference of the library as log-weights of queries and keys."""

from __future__ import annotations

from torch import Tensor

from fenchel.nn.preference import AbstractPreference, AttentionInputs

__all__ = ["believed"]


def believed(
    preference: AbstractPreference, query: Tensor, key: Tensor, *, query_offset: int = 0
) -> Tensor | None:
    """What a preference that looks at places says of queries (B, H, m, d) and keys (B, H, n, d).

    Args:
        preference: One that reads nothing but indices.
        query: For its sizes.
        key: For its size.
        query_offset: Place of the first query among the keys.

    Returns:
        Log-weights or a mask that broadcasts to (B, H, m, n); None is uniform.
    """
    batch, heads, m = query.shape[:3]
    n, device, dtype = key.shape[2], query.device, query.dtype
    return preference(AttentionInputs(batch, heads, m, n, device, dtype, query_offset=query_offset))
