"""Small layers and inputs, and what a layer computes, by hand."""

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.nn import MultiheadAttention
from fenchel.nn.preference import AbstractPreference, AttentionInputs

WIDTH, HEADS, QUERIES, KEYS, BATCH = 12, 3, 4, 6, 2


def build(**options: Any) -> MultiheadAttention:
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    nn.init.normal_(layer.in_proj_weight, std=0.5)
    return layer


def tokens(count: int = KEYS, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, count, WIDTH, dtype=torch.float64)


def heads(layer: Any, x: Tensor) -> list[Tensor]:
    """Queries, keys and values of every head, by hand."""
    return [
        (x @ weight.T + bias).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        for weight, bias in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    ]


def gradient(parameter: Tensor | None) -> Tensor:
    assert parameter is not None
    assert parameter.grad is not None
    return parameter.grad


class Importance(AbstractPreference):
    """A learned weight a token, from the layer's inputs; looks at everything that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(WIDTH, 1, dtype=torch.float64)
        self.seen: AttentionInputs | None = None

    def forward(self, inputs: AttentionInputs) -> Tensor:
        self.seen = inputs
        assert inputs.key_inputs is not None
        return self.score(inputs.key_inputs).mT[:, None]
