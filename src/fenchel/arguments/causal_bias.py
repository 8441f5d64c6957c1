"""Torch's own mask objects, ``causal_upper_left`` and ``causal_lower_right``, whose elements nobody may read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.errors import ProblemError

__all__ = ["is_causal_bias", "without_causal_bias"]


def is_causal_bias(mask: Any) -> bool:
    """Whether something is a ``torch.nn.attention.bias.CausalBias``.

    By name: its module brings torch's compiler, which takes seconds to import.
    """
    kind = type(mask)
    return (
        kind is not Tensor and kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"
    )


def without_causal_bias(name: str, mask: Any, queries: int, keys: int, device: torch.device) -> Any:
    """A mask of torch's own as a bool tensor (queries, keys), True = attend; whatever else was given as it is.

    Args:
        name: What the user calls it.
        mask: What was given. A ``CausalBias`` is a tensor whose memory is not initialised; it says what it means by its
            sizes and its variant alone.
        queries: m.
        keys: n.
        device: Where the tensor is to be.

    Raises:
        ProblemError: If a ``CausalBias`` was made for other numbers of queries or keys.

    Example:
        >>> from torch.nn.attention.bias import causal_lower_right
        >>> without_causal_bias("attn_mask", causal_lower_right(2, 3), 2, 3, torch.device("cpu"))
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """
    if not is_causal_bias(mask):
        return mask
    if (mask.seq_len_q, mask.seq_len_kv) != (queries, keys):
        raise ProblemError(
            f"{name} is a CausalBias of {mask.seq_len_q} queries and {mask.seq_len_kv} keys; expected one of {queries} "
            f"and {keys}"
        )
    last = keys - queries if mask.variant.name == "LOWER_RIGHT" else 0
    allowed: Tensor = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(last)
    return allowed
