"""Importance from the whole input, and from pairs."""

import torch
from torch import Tensor


def context(sentence: Tensor, query: Tensor, key: Tensor, value: Tensor, network: torch.nn.Module) -> Tensor:
    weights = dict(network.named_parameters())
    mean = sentence.mean(1, keepdim=True)
    inner = sentence @ weights["own.weight"].T + weights["own.bias"] + mean @ weights["among.weight"].T
    importance = torch.nn.functional.gelu(inner) @ weights["score.weight"].T
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / key.shape[-1] ** 0.5
    return torch.softmax(scores + importance.transpose(1, 2).unsqueeze(2), -1) @ value


def pair_bias(pairs: Tensor, projection: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    bias = torch.einsum("bijc,ch->bhij", pairs, projection)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
