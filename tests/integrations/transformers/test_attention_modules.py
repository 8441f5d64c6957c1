"""Attention of every family is found by the names of its modules; what bypasses the registry is named."""

from __future__ import annotations

import pytest
from torch import nn

from fenchel.errors import ModelError
from fenchel.integrations.transformers.attention_modules import attention_modules
from tests.tiny_models import tiny_model


@pytest.mark.parametrize(
    ("family", "count", "name"),
    [
        ("bert", 2, "encoder.layer.1.attention.self"),
        ("t5", 6, "decoder.block.1.layer.1.EncDecAttention"),
        ("marian", 8, "encoder.layers.0.self_attn"),
        ("vit", 2, "layers.0.attention"),
        ("gpt2", 2, "h.1.attn"),
        ("albert", 1, "encoder.albert_layer_groups.0.albert_layers.0.attention"),
    ],
)
def test_modules_are_found_by_their_qualified_names(family: str, count: int, name: str) -> None:
    found = attention_modules(tiny_model(family))
    assert len(found) == count
    assert name in found.values()


def test_torchs_own_attention_beside_the_models_is_named() -> None:
    model = tiny_model("vit")
    model.head = nn.MultiheadAttention(24, 4)
    with pytest.raises(
        ModelError, match=r"ViTModel computes attention in MultiheadAttention \(such as 'head'\)"
    ):
        attention_modules(model)


def test_a_model_without_attention_is_an_error() -> None:
    with pytest.raises(ModelError, match="Sequential has no module that calls the attention registry"):
        attention_modules(nn.Sequential(nn.Linear(2, 2)))
