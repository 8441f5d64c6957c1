"""The linear maps of ``torch.nn.MultiheadAttention``, whose weights are one tensor or three."""

from __future__ import annotations

from torch import Tensor, nn

from fenchel.nn.attending import KeyProjection, LayerCall, lies_in
from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["key_projection", "projected", "seen"]


def projected(
    layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each through its map; in one product where they are the same tensor."""
    if layer.in_proj_weight is None:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    elif query is key and key is value:
        packed = nn.functional.linear(query, layer.in_proj_weight, layer.in_proj_bias)
        return packed.chunk(3, -1)  # pyright: ignore[reportReturnType]
    else:
        weights = layer.in_proj_weight.chunk(3)
    biases = (None, None, None) if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return tuple(map(nn.functional.linear, (query, key, value), weights, biases))  # pyright: ignore[reportReturnType]


def key_projection(layer: nn.MultiheadAttention, inputs: Tensor) -> KeyProjection:
    """The map of the keys by heads, with what it takes.

    Args:
        layer: The layer.
        inputs: (B, n, width).
    """
    packed, biases = layer.in_proj_weight, layer.in_proj_bias
    weight = layer.k_proj_weight if packed is None else packed.chunk(3)[1]
    heads = (layer.num_heads, layer.head_dim)
    bias = None if biases is None else biases.chunk(3)[1].view(heads)
    return KeyProjection(inputs, weight.unflatten(0, heads), bias)


def seen(layer: nn.MultiheadAttention, call: LayerCall, keys: Tensor, inputs: AttentionInputs) -> LayerCall:
    """A call with what an onlooker wants to know beside it.

    Args:
        layer: The layer.
        call: What it asks.
        keys: What its key map gave, (B, H, n, d).
        inputs: What it was called with.
    """
    query, key = inputs.query_inputs, inputs.key_inputs
    if query is None or key is None:
        return call
    return call._replace(
        projection=key_projection(layer, key) if call.problem.templates is keys else None,
        key_padding=inputs.key_padding,
        asks_itself=bool(inputs.query_offset) or lies_in(query, key),
    )
