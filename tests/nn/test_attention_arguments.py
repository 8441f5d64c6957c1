"""Bad input: one clear error, with the names that the caller used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fenchel.errors import ProblemError
from fenchel.nn import MultiheadAttention
from fenchel.nn.preference import Causal

WIDTH, HEADS, QUERIES, KEYS, BATCH = 12, 3, 4, 6, 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "embed_dim is 12 and num_heads is 5"),
        ({"kdim": 0}, "kdim of MultiheadAttention is 0"),
        ({"dropout": 1.0}, r"dropout is 1\.0; expected a finite number at least 0 and below 1"),
        ({"alpha": 0.0}, r"alpha of MultiheadAttention is 0\.0; expected a finite number above 0"),
        (
            {"estimator": "exakt"},
            "estimator is 'exakt'; expected one of first_order, second_order, exact",
        ),
        ({"preference": torch.zeros(3)}, "preference is a Tensor; expected one of fenchel.nn.preference"),
        ({"evidence": 3}, "evidence is a int"),
        ({"normalize_templates": True, "radius": 0.0}, r"radius of MultiheadAttention is 0\.0"),
        ({"radius": 2.0}, r"radius is 2\.0 .* set normalize_templates=True"),
        ({"learn_radius": True}, "learn_radius True, but normalize_templates is False"),
    ],
)
def test_construction(options, message):
    with pytest.raises(ProblemError, match=message):
        MultiheadAttention(**{"embed_dim": WIDTH, "num_heads": HEADS, **options})


def call(layer: MultiheadAttention | None = None, **changed: Any) -> None:
    layer = layer or MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=5, vdim=7)
    given: dict[str, Any] = {
        "query": torch.zeros(BATCH, QUERIES, WIDTH),
        "key": torch.zeros(BATCH, KEYS, 5),
        "value": torch.zeros(BATCH, KEYS, 7),
    }
    layer(**{**given, **changed})


def test_the_call_that_the_others_change_works():
    call()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"query": torch.zeros(WIDTH)},
            r"query has shape \(12,\); expected \(N, L, E\), or \(L, E\) unbatched",
        ),
        ({"query": torch.zeros(BATCH, QUERIES, 11)}, r"query has width 11 .* expected embed_dim = 12"),
        ({"key": torch.zeros(BATCH, KEYS, WIDTH)}, r"key has width 12 .* expected kdim = 5"),
        ({"value": torch.zeros(BATCH, KEYS, 5)}, r"value has width 5 .* expected vdim = 7"),
        ({"key": torch.zeros(KEYS, 5)}, r"key has shape \(6, 5\) and query \(2, 4, 12\)"),
        ({"value": torch.zeros(BATCH, KEYS + 1, 7)}, r"key has shape \(2, 6, 5\) and value \(2, 7, 7\)"),
        ({"query": torch.zeros(BATCH + 1, QUERIES, WIDTH)}, r"query has batch size 3 .* and key 2"),
        (
            {"query": torch.zeros(BATCH, QUERIES, WIDTH).double()},
            r"query has dtype torch\.float64, the layer torch\.float32",
        ),
        ({"query": torch.zeros(BATCH, QUERIES, WIDTH, device="meta")}, "query is on meta, the layer on cpu"),
        (
            {"attn_mask": torch.zeros(QUERIES, KEYS).int()},
            r"attn_mask has dtype torch\.int32; expected .* bool \(True = masked\)",
        ),
        ({"key_padding_mask": torch.zeros(BATCH, KEYS).int()}, r"key_padding_mask has dtype torch\.int32"),
        (
            {"attn_mask": torch.zeros(KEYS, QUERIES)},
            r"attn_mask has shape \(6, 4\); expected \(L, S\) = \(4, 6\) or .* = \(6, 4, 6\)",
        ),
        ({"attn_mask": torch.zeros(BATCH, QUERIES, KEYS)}, r"attn_mask has shape \(2, 4, 6\)"),
        (
            {"key_padding_mask": torch.zeros(BATCH, QUERIES)},
            r"key_padding_mask has shape \(2, 4\); expected \(N, S\) = \(2, 6\)",
        ),
        ({"key_padding_mask": torch.zeros(KEYS)}, r"key_padding_mask has shape \(6,\)"),
        ({"attn_mask": torch.zeros(QUERIES, KEYS, device="meta")}, "attn_mask is on meta, query on cpu"),
        ({"key_padding_mask": torch.zeros(BATCH, KEYS, device="meta")}, "key_padding_mask is on meta"),
    ],
)
def test_call(changed, message):
    with pytest.raises(ProblemError, match=message):
        call(**changed)


def test_unbatched_call_with_a_batched_mask():
    layer = MultiheadAttention(WIDTH, HEADS)
    x = torch.zeros(KEYS, WIDTH)
    with pytest.raises(ProblemError, match=r"key_padding_mask has shape \(1, 6\); expected \(S,\) = \(6,\)"):
        layer(x, x, x, key_padding_mask=torch.zeros(1, KEYS, dtype=torch.bool))


def test_batch_second_is_named_in_messages():
    layer = MultiheadAttention(WIDTH, HEADS)
    with pytest.raises(ProblemError, match=r"query has batch size 3 .* and key 2 .* with batch_first=False"):
        layer(torch.zeros(QUERIES, 3, WIDTH), torch.zeros(KEYS, 2, WIDTH), torch.zeros(KEYS, 2, WIDTH))


def test_a_preference_on_another_device():
    class OnMeta(Causal):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, device="meta"))

    layer = MultiheadAttention(WIDTH, HEADS, preference=OnMeta())
    x = torch.zeros(KEYS, BATCH, WIDTH)
    with pytest.raises(ProblemError, match="OnMeta is on meta"):
        layer(x, x, x)
