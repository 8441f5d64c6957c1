"""The mask objects of ``torch.nn.attention.bias`` wherever a log-preference goes; masks cost no extra arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

from fenchel import functional as F
from fenchel.functional import inference
from fenchel.nn import MixtureAttention, MultiheadAttention, TransportAttention
from fenchel.nn.preference import AbstractPreference, KeyPadding
from fenchel.tensors import log_weights
from tests.functional.ops import OPS, infer
from tests.normal import drawn

BIASES: dict[str, Callable[..., Any]] = {"upper left": causal_upper_left, "lower right": causal_lower_right}


def meant(name: str, queries: int, keys: int) -> Tensor:
    last = keys - queries if name == "lower right" else 0
    return torch.tensor([[j <= i + last for j in range(keys)] for i in range(queries)])


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
@pytest.mark.parametrize("op", [name for name, op in OPS.items() if "preference" in op.takes])
@pytest.mark.parametrize("name", BIASES)
def test_every_op_reads_it_as_the_mask_that_it_stands_for(name: str, op: str, estimator: str) -> None:
    tensors = {part: x.detach() for part, x in OPS[op].call(key_heads=2).items()}
    found, expected = (
        infer(OPS[op], {**tensors, "log_preference": u}, estimator)
        for u in (BIASES[name](5, 7), meant(name, 5, 7))
    )
    for part in ("output", "weights", "certificate", "gap"):
        torch.testing.assert_close(getattr(found, part), getattr(expected, part))


class Given(AbstractPreference):
    def __init__(self, bias: CausalBias) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, inputs: Any) -> Tensor:
        return self.bias


@pytest.mark.parametrize("kind", [MultiheadAttention, MixtureAttention, TransportAttention])
@pytest.mark.parametrize("name", BIASES)
def test_layers_read_it_as_the_mask_that_it_stands_for(name: str, kind: type) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"cost": "squared_euclidean"} if kind is TransportAttention else {}
    layer = kind(8, 2, batch_first=True, **options).double().eval()
    x, y = drawn(2, 3, 8), drawn(2, 6, 8, seed=1)
    bias, masked = BIASES[name](3, 6), ~meant(name, 3, 6)
    torch.testing.assert_close(layer(x, y, y, attn_mask=bias), layer(x, y, y, attn_mask=masked))
    if kind is not TransportAttention:
        expected = layer(x, y, y, attn_mask=masked)
        for preference in (Given(bias), Given(bias) * KeyPadding()):
            layer.preference = preference
            torch.testing.assert_close(layer(x, y, y), expected)


def test_preferences_of_one_number_or_another_dtype_are_taken() -> None:
    query, key = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 7, 3)
    plain = F.attention(query, key, key)
    for u in (torch.zeros(()), torch.ones(1, dtype=torch.bool), torch.zeros(7, dtype=torch.float64)):
        torch.testing.assert_close(F.attention(query, key, key, log_preference=u), plain)


LEADING = [((4,), (4, 4)), ((), ()), ((4,), (4,)), ((2, 4), (2, 1)), ((1, 4), (3, 4)), ((3, 1), (4,))]


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize(("of_query", "of_key"), LEADING)
def test_leading_dimensions_broadcast_as_torchs_do(
    of_query: tuple[int, ...], of_key: tuple[int, ...], estimator: str
) -> None:
    query, key, value = (
        drawn(*lead, *own, seed=seed).requires_grad_()
        for seed, (lead, own) in enumerate(((of_query, (3, 8)), (of_key, (6, 8)), (of_key, (6, 5))))
    )
    lead = torch.broadcast_shapes(of_query, of_key)
    options: dict[str, Any] = {"log_preference": drawn(3, 6) < 0.7, "estimator": estimator}
    wide = [x.expand(*lead, *x.shape[-2:])[(None,) * (2 - len(lead))] for x in (query, key, value)]
    slopes = partial(torch.autograd.grad, retain_graph=True, materialize_grads=True)
    found, expected = F.infer(query, key, value, **options), F.infer(*wide, **options)
    assert found.output.shape == (*lead, 3, 5)
    gap = () if estimator == "exact" else ("gap",)
    for name in ("output", "weights", "dual", *gap):
        given, wanted = (getattr(each, name) for each in (found, expected))
        torch.testing.assert_close(given, wanted.reshape(given.shape))
        weight = drawn(*given.shape, seed=5)
        torch.testing.assert_close(
            *(slopes((x.reshape(weight.shape) * weight).sum(), (query, key)) for x in (given, wanted))
        )
    assert all(bound.shape == (*lead, 3) for bound in found.certificate)


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("changed", [None, (9, 9), (300, 5), (5, 300), (515, 5), (515, 517)])
def test_only_a_causal_mask_is_left_to_torchs_causal_kernel(
    floating: bool, changed: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    causal = []

    def noted(*args: Any, **options: Any) -> Tensor:
        causal.append(options["is_causal"])
        return torch.nn.functional.scaled_dot_product_attention(*args, **options)

    monkeypatch.setattr(inference, "scaled_dot_product_attention", noted)
    tokens = inference.LEAST_CAUSAL + 8
    query, key, value = tensors = drawn(3, 2, 2, tokens, 4).requires_grad_().unbind()
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if changed is not None:
        mask[changed] = ~mask[changed]
    log_preference = log_weights(mask, torch.float64) if floating else mask
    found = F.attention(query, key, value, log_preference=log_preference)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(found, expected)
    weight = drawn(*found.shape, seed=9)
    given, wanted = (torch.autograd.grad((out * weight).sum(), tensors) for out in (found, expected))
    torch.testing.assert_close(given, wanted)
    assert causal == [changed is None]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch, in jvp
@torch.no_grad()
def test_a_causal_mask_keeps_its_forward_derivative() -> None:
    query, tokens = drawn(1, 1, inference.LEAST_CAUSAL, 4), inference.LEAST_CAUSAL
    mask = log_weights(torch.ones(tokens, tokens, dtype=torch.bool).tril(), torch.float64)

    def attended(log_preference: Tensor) -> Tensor:
        return F.attention(query, query, query, log_preference=log_preference)

    with sdpa_kernel(SDPBackend.MATH):
        moved = torch.func.jvp(attended, (mask,), (drawn(tokens, tokens),))[1]
    assert float(moved.abs().max()) > 0.1
