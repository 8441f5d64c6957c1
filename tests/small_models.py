"""Small models with attention layers of ``fenchel.nn``, as users build them."""

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.nn import MultiheadAttention, TransportAttention

__all__ = ["AttentionPooling", "ViT"]


class _Block(nn.Module):
    """A layer of a vision transformer."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.self_attn, self.norm = attention, nn.LayerNorm(width)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        return self.norm(queries + self.self_attn(queries, x, x)[0])


class ViT(nn.Module):
    """Patches, a learned class token, layers of attention and classes.

    Args:
        width: Of every layer.
        depth: How many layers.
        heads: Of every layer.
        patch: Pixels of a patch, to a side.
        transport: Options of a :class:`~fenchel.nn.TransportAttention` as the last layer, by which alone it answers.
    """

    def __init__(self, width: int, depth: int, heads: int, patch: int = 4, **transport: Any) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, patch)
        self.class_token = nn.Embedding(1, width)
        layers: list[nn.Module] = [
            _Block(width, MultiheadAttention(width, heads, batch_first=True)) for _ in range(depth)
        ]
        if transport:
            layers[-1] = _Block(width, TransportAttention(width, heads, batch_first=True, **transport))
        self.layers = nn.ModuleList(layers)
        self.classes = nn.Linear(width, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT
        x = torch.cat((self.class_token.weight.expand(len(x), 1, -1), x), 1)
        for layer in self.layers[:-1]:
            x = layer(x, x)
        return self.classes(self.layers[-1](x, x[:, :1])[:, 0])


class AttentionPooling(nn.Module):
    """Words, 0 being padding, that a learned question reads, and classes."""

    def __init__(self, vocabulary: int, classes: int, width: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.embed, self.question = nn.Embedding(vocabulary, width), nn.Embedding(1, width)
        self.attention = MultiheadAttention(width, heads, batch_first=True, **options)
        self.classify = nn.Linear(width, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.embed(numbers)
        question = self.question.weight.expand(len(x), 1, -1)
        pooled, _ = self.attention(question, x, x, key_padding_mask=numbers == 0, need_weights=False)
        return self.classify(pooled[:, 0])
