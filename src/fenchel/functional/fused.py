"""First-order attention by torch's fused kernels, at any dual point."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fenchel.functional.precision import without_autocast

__all__ = ["fused_attention"]


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

    Args:
        dual: λ, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Bool or floating, broadcastable to (B, H, m, n), with something to attend to in every row.
        scale: Multiplies the scores.
        dropout_p: Probability with which a weight is dropped.
    """
    if log_preference is not None and log_preference.is_floating_point():
        log_preference = log_preference.to(dual.dtype)
    with without_autocast(dual):
        return scaled_dot_product_attention(
            dual,
            key,
            value,
            attn_mask=log_preference,
            scale=scale,
            dropout_p=dropout_p,
            enable_gqa=dual.shape[1] != key.shape[1],
        )
