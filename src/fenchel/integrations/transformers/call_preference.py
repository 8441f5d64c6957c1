"""The log-preference of one attention call, for computing with it: differentiable, and never looked into.

``log_preference`` serves the audit, which compares values to find what is constant and works without gradients.
Here nothing depends on a value, so that a model can be compiled whole and a GPU is never waited for: a dimension
counts as constant where its stride says so (an expanded view).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.integrations.transformers.log_preference import (
    hardened,
    require_broadcastable,
    stands_for_causal,
)

__all__ = ["call_preference"]


def _without_expanded_dimensions(tensor: Tensor) -> Tensor:
    """``tensor`` (4-D) with size 1 where it was expanded along batch, head or query."""
    for dim in range(3):
        if tensor.shape[dim] > 1 and tensor.stride(dim) == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def call_preference(
    site: str,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    position_bias: Tensor | None,
    is_causal: bool | None,
) -> Tensor | None:
    """Mask and position bias of one call as log u.

    Args:
        site: Name of the attention module, for messages.
        query: (B, H, m, d).
        key: (B, H_kv, n, d).
        attention_mask: Bool (True = attend) or additive, broadcastable to (B, H, m, n); None if the family made
            none. Additive values at or below ``HARD_MASK`` mean u_i = 0.
        position_bias: Additive, broadcastable likewise, or None. Gradients flow to it.
        is_causal: What the family says of itself; only consulted where it made no mask.

    Returns:
        Broadcastable to (B, H, m, n): bool where only a mask was given, floating with -inf where masked otherwise;
        size 1 along dimensions that were expanded. None is uniform.

    Raises:
        CaptureError: If a tensor does not fit, or if causality is in doubt.

    Example:
        >>> query, mask = torch.ones(1, 2, 3, 4), torch.tensor([0.0, 0.5, -3e38]).expand(1, 1, 3, 3)
        >>> call_preference("attn", query, query, mask, None, False)
        tensor([[[[0.0000, 0.5000,   -inf]]]])
    """
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    require_broadcastable(site, shape, attention_mask=attention_mask, position_bias=position_bias)
    mask = attention_mask
    if stands_for_causal(site, shape, attention_mask, is_causal):
        mask = torch.ones(1, 1, shape[2], shape[3], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        mask = _without_expanded_dimensions(mask)
    if position_bias is None:
        return mask if mask is None or mask.dtype == torch.bool else hardened(mask)
    bias = _without_expanded_dimensions(position_bias)
    if mask is None:
        return hardened(bias)
    if mask.dtype == torch.bool:
        return torch.where(mask, hardened(bias), -torch.inf)
    return hardened(bias + mask)
