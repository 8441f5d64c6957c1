"""MultiheadAttention under a closeness: by hand, learned orders, switches, masks, state, and wrong arguments."""

from typing import Any

import pytest
import torch
from torch import nn

from fenchel import KL, Tsallis
from fenchel import functional as F
from fenchel.nn.preference import Causal
from tests.nn.small_layers import BATCH, HEADS, KEYS, build, gradient, heads, tokens

SPARSE = Tsallis(1.5)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize("closeness", [Tsallis(2), Tsallis(1.3, relative="csiszar", temperature=0.5)])
def test_it_is_attention_under_that_closeness(closeness: Tsallis, estimator: str) -> None:
    torch.manual_seed(0)
    layer = build(closeness=closeness, estimator=estimator, preference=Causal(), learn_alpha=True)
    x = tokens()
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[1, 4:] = True
    output, weights = layer(x, x, x, padding, average_attn_weights=False)
    q, k, v = heads(layer, x)
    allowed = torch.ones(KEYS, KEYS, dtype=torch.bool).tril() & ~padding[:, None, None]
    options: dict[str, Any] = {"log_preference": allowed, "closeness": closeness, "estimator": estimator}
    torch.testing.assert_close(weights, F.attention_weights(q, k, **options))
    expected = layer.out_proj(F.attention(q, k, v, **options).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(layer(x, x, x, padding, need_weights=False)[0], expected)
    assert bool((weights[1, :, :, 4:] == 0).all() & (weights.triu(1) == 0).all())


def test_every_head_learns_its_order() -> None:
    torch.manual_seed(0)
    layer = build(closeness=Tsallis(1.25, temperature=0.3), learn_order=True)
    assert layer.raw_order is not None
    near = layer.effective_closeness
    assert isinstance(near, Tsallis)
    torch.testing.assert_close(near.order, torch.full((HEADS, 1), 1.25).double())
    x = tokens()
    layer(x, x, x)[0].sin().sum().backward()
    assert bool((gradient(layer.raw_order).abs() > 1e-9).all())
    nn.init.normal_(layer.raw_order)
    fixed = build(closeness=Tsallis((1 + layer.raw_order.detach().sigmoid())[:, None], temperature=0.3))
    state = {name: tensor for name, tensor in layer.state_dict().items() if name != "raw_order"}
    fixed.load_state_dict(state)
    torch.testing.assert_close(fixed(x, x, x)[0], layer(x, x, x)[0])
    layer.estimator = fixed.estimator = "exact"
    torch.testing.assert_close(fixed(x, x, x)[0], layer(x, x, x)[0])
    layer.reset_parameters()
    torch.testing.assert_close(layer.raw_order.sigmoid(), torch.full((HEADS,), 0.25).double())
    assert "closeness=Tsallis(1.25, temperature=0.3), order=learned" in repr(layer)


def test_kl_and_none_are_one_layer() -> None:
    torch.manual_seed(0)
    plain, named, x = build(), build(closeness=KL()), tokens()
    named.load_state_dict(plain.state_dict())
    assert torch.equal(plain(x, x, x, need_weights=False)[0], named(x, x, x, need_weights=False)[0])


def test_certificate_and_gap() -> None:
    torch.manual_seed(0)
    layer = build(closeness=SPARSE, keep_certificate=True, keep_gap=True)
    x = tokens()
    layer(x, x, x, need_weights=False)
    torch.testing.assert_close(layer.last_gap, layer.last_certificate.gap)
    layer.last_gap.sum().backward()
    assert float(gradient(layer.in_proj_weight).abs().max()) > 0


def test_numbers_of_heads_go_where_the_layer_goes() -> None:
    layer = build(closeness=Tsallis(torch.full((HEADS, 1), 1.5), temperature=torch.ones(HEADS, 1)))
    near = layer.to("meta").effective_closeness
    assert isinstance(near, Tsallis)
    assert isinstance(near.order, torch.Tensor)
    assert isinstance(near.temperature, torch.Tensor)
    assert near.order.is_meta
    assert near.temperature.is_meta
