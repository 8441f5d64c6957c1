"""A head's attention is compared with the model's own, and what differs is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import ModelError
from fenchel.integrations.transformers.eager_check import check_against_eager
from fenchel.integrations.transformers.log_preference import LogPreferences

SHAPE = (2, 2, 6, 4)


def eager_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT * scaling
    if mask is not None:
        scores = scores + mask
    weights = (scores + module.surprise).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class Attention(nn.Module):
    """Stands for a family; its eager attention is the one above, by its module."""

    surprise: Tensor | float = 0.0

    def forward(self) -> None:
        pass


def check(module: nn.Module, output: Tensor, mask: Tensor | None = None) -> None:
    query, key, value = tensors()
    preference = LogPreferences()("layer.0", query, key, mask, None, False)
    check_against_eager("layer.0", module, query, key, value, output, 0.5, preference, None, {})


def tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SHAPE, generator=generator) for _ in range(3)]


def attend(mask: Tensor | None = None) -> Tensor:
    query, key, value = tensors()
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.5).transpose(
        1, 2
    )


def test_the_same_attention_passes() -> None:
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    check(Attention(), attend())
    check(Attention(), attend(causal), causal)


def test_a_mask_that_was_lost_is_noticed() -> None:
    with pytest.raises(ModelError, match="changes its scores"):
        check(Attention(), attend(), torch.ones(6, 6, dtype=torch.bool).tril()[None, None])


def test_rows_that_see_nothing_are_not_compared() -> None:
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[:, :, 2] = False
    output = attend(mask)
    output[:, 2] = 7
    check(Attention(), output, mask)
    check(Attention(), 7 * output, torch.zeros_like(mask))
    output[:, 3] = 7
    with pytest.raises(ModelError, match="changes its scores"):
        check(Attention(), output, mask)
