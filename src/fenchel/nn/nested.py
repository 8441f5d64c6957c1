"""Sequences of several lengths as one nested tensor: what torch's encoder makes of padded input in inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError

__all__ = ["nested_self_attention"]


def nested_self_attention(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    plain: bool,
    query_offset: int | None,
) -> Tensor:
    """Pad, attend without the padding, and nest again.

    ``torch.nn.TransformerEncoder`` turns padded input into a nested tensor in inference if it was built from layers
    that its fused path can run, and gives that to whatever attention its layers have by then. So this one form
    has to work; it is also the only one that torch's own attention layer takes.

    Args:
        layer: What attends to padded sequences.
        query: Nested, with the strided layout; ``key`` and ``value`` have to be the same tensor.
        key: See ``query``.
        value: See ``query``.
        plain: Whether the call had no mask and asked for no weights.
        query_offset: Handed on.

    Returns:
        Outputs, nested as ``query`` is.

    Raises:
        ProblemError: On any other use of nested tensors.
    """
    if query is not key or key is not value or not plain or not layer.batch_first:
        raise ProblemError(
            "query, key or value is a nested tensor; expected one in self-attention only (query is key is value), with "
            "batch_first=True, need_weights=False and no mask. Give query.to_padded_tensor(0.0) and key_padding_mask"
        )
    if query.layout != torch.strided:
        raise ProblemError(
            f"query is a nested tensor of layout {query.layout}; expected torch.strided. Give "
            "query.to_padded_tensor(0.0) and key_padding_mask"
        )
    lengths = [len(sequence) for sequence in query.unbind()]
    padded = query.to_padded_tensor(0.0)
    padding = torch.arange(padded.shape[1]) >= torch.tensor(lengths).unsqueeze(1)
    outputs, _ = layer(
        padded, padded, padded, padding.to(padded.device), need_weights=False, query_offset=query_offset
    )
    return torch.nested.as_nested_tensor([out[:length] for out, length in zip(outputs, lengths, strict=True)])
