"""First-order attention by torch's fused kernels, at any dual point."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fenchel.functional.precision import mask_dtype, without_autocast

__all__ = ["fused_attention"]

SLOW_IN_HALF_BELOW = 256
"""Keys up to which the backward pass of torch's kernel on the CPU takes longer in half types than in float32."""


def fused_attention(
    dual: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    *,
    scale: float,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(log u + λ(scale·K)ᵀ) V by ``scaled_dot_product_attention``.

    In the dtype given; half types that need a backward pass on the CPU, of up to 256 keys, in float32, which is faster.

    Args:
        dual: λ, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Bool or floating, broadcastable to (B, H, m, n), with something to attend to in every row.
        scale: Multiplies the scores.
        dropout_p: Probability with which a weight is dropped.
    """
    given = dual.dtype
    if _is_slow_in_half(dual, key, value):
        dual, key, value = dual.float(), key.float(), value.float()
    if log_preference is not None and log_preference.is_floating_point():
        log_preference = log_preference.to(mask_dtype(log_preference, dual.dtype))
    # A flag, and not a comparison, which in a graph with open sizes is a symbol.
    grouped = {"enable_gqa": True} if dual.shape[1] != key.shape[1] else {}
    with without_autocast(dual):
        output = scaled_dot_product_attention(
            dual,
            key,
            value,
            attn_mask=log_preference,
            scale=scale,
            dropout_p=dropout_p,
            **grouped,
        )
    return output.to(given)


def _is_slow_in_half(dual: Tensor, key: Tensor, value: Tensor) -> bool:
    half_on_cpu = dual.device.type == "cpu" and dual.dtype in (torch.float16, torch.bfloat16)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (dual, key, value))
    return half_on_cpu and trained and key.shape[2] <= SLOW_IN_HALF_BELOW
