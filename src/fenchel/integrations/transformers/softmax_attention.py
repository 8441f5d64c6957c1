"""The output that a model expects of its attention: softmax(scaling·⟨q, k⟩ + log u)·v, by fused kernels."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fenchel.integrations.transformers.log_preference import LogPreference

__all__ = ["softmax_attention"]


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, preference: LogPreference
) -> Tensor:
    """Attend as the model itself would.

    Args:
        query: (B, H, m, d).
        key: (B, H_kv, n, d); H_kv divides H.
        value: (B, H_kv, n, d_v).
        scaling: Multiplies the scores.
        preference: Added to them. A row that may attend to nothing gets zeros, as fused kernels give.

    Returns:
        (B, m, H, d_v), contiguous.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    causal = preference.only_causal
    mask = None if causal else preference.kernel_mask
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scaling)
    if preference.empty_rows is not None:
        output = output.masked_fill(preference.empty_rows, 0)
    return output.transpose(1, 2).contiguous()
