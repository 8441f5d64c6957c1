"""The mask objects of ``torch.nn.attention.bias`` wherever a log-preference goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

from fenchel import KL, Discrete, InferenceProblem, ProblemError, Tsallis
from fenchel import functional as F
from fenchel.nn import MixtureAttention, MultiheadAttention, TransportAttention
from fenchel.nn.preference import AbstractPreference

BIASES: dict[str, Callable[..., Any]] = {"upper left": causal_upper_left, "lower right": causal_lower_right}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def meant(name: str, queries: int, keys: int) -> Tensor:
    last = keys - queries if name == "lower right" else 0
    return torch.tensor([[j <= i + last for j in range(keys)] for i in range(queries)])


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 7), (7, 7)])
@pytest.mark.parametrize("name", BIASES)
def test_values_and_gradients_are_those_of_torchs_call(
    name: str, queries: int, keys: int, key_heads: int
) -> None:
    query = drawn(2, 4, queries, 5).requires_grad_()
    key, value = (drawn(2, key_heads, keys, 5, seed=seed).requires_grad_() for seed in (1, 2))
    tensors = (query, key, value)
    bias, grouped = BIASES[name](queries, keys), key_heads != 4
    found = F.attention(query, key, value, log_preference=bias, enable_gqa=grouped)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, enable_gqa=grouped
    )
    torch.testing.assert_close(found, expected)
    weight = drawn(*found.shape, seed=9)
    given, wanted = (torch.autograd.grad((out * weight).sum(), tensors) for out in (found, expected))
    torch.testing.assert_close(given, wanted)


def test_queries_that_a_lower_right_bias_leaves_nothing_get_zeros() -> None:
    query, key = drawn(1, 2, 5, 4), drawn(1, 2, 3, 4, seed=1)
    with pytest.warns(UserWarning, match="Lower right causal bias"):
        bias = causal_lower_right(5, 3)
    found = F.attention(query, key, key, log_preference=bias)
    assert torch.equal(found[:, :, :2], torch.zeros(1, 2, 2, 4, dtype=torch.float64))
    assert bool((found[:, :, 2:] != 0).all())


def _ops(queries: int, keys: int) -> dict[str, Callable[[Any], Any]]:
    q, k, v = drawn(2, 4, queries, 5), drawn(2, 4, keys, 5, seed=1), drawn(2, 4, keys, 3, seed=2)
    rows, s = drawn(1, 4, queries + keys - 1, 5, seed=3), drawn(2, 4, keys, 5, seed=4).square()
    ops: dict[str, Callable[[Any], Any]] = {
        "tsallis": lambda u: F.attention(q, k, v, log_preference=u, closeness=Tsallis(1.5)),
        "transport": lambda u: F.transport_attention(
            q, k, v, log_preference=u, gamma=1.0, cost="squared_euclidean"
        ),
        "reference": lambda u: F.reference.attention(q, k, v, log_preference=u),
        "reference weights": lambda u: F.reference.inferred_weights(q, k, log_preference=u),
        "reference certificate": lambda u: F.reference.certificate(q, k, log_preference=u),
        "reference mixture": lambda u: F.reference.mixture_attention(q, k, s, v, log_preference=u),
    }
    for estimator in ("first_order", "second_order", "exact"):
        how: dict[str, Any] = {"estimator": estimator}
        ops |= {
            f"{name}, {estimator}": lambda u, f=function, a=given, h=how: f(*a, log_preference=u, **h)
            for name, function, given in (
                ("attention", F.attention, (q, k, v)),
                ("weights", F.attention_weights, (q, k)),
                ("certificate", F.attention_with_certificate, (q, k, v)),
                ("relative", F.relative_attention, (q, k, v, rows)),
                ("relative weights", F.relative_attention_weights, (q, k, rows)),
                ("relative certificate", F.relative_attention_with_certificate, (q, k, v, rows)),
                ("mixture", F.mixture_attention, (q, k, s, v)),
                ("mixture weights", F.mixture_attention_weights, (q, k, s)),
                ("mixture certificate", F.mixture_attention_with_certificate, (q, k, s, v)),
            )
        }
        if estimator != "exact":
            ops[f"gap, {estimator}"] = lambda u, h=how: F.gap(q, k, log_preference=u, **h)
            ops[f"relative gap, {estimator}"] = lambda u, h=how: F.relative_gap(
                q, k, rows, log_preference=u, **h
            )
    return ops


@pytest.mark.parametrize("op", _ops(1, 1))
@pytest.mark.parametrize("name", BIASES)
def test_every_op_reads_it_as_the_mask_that_it_stands_for(name: str, op: str) -> None:
    for queries, keys in ((5, 5), (3, 6)):
        call = _ops(queries, keys)[op]
        torch.testing.assert_close(call(BIASES[name](queries, keys)), call(meant(name, queries, keys)))


class Given(AbstractPreference):
    """A preference that answers with what it was given."""

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
        layer.preference = Given(bias)
        torch.testing.assert_close(layer(x, y, y), expected)


def test_problems_read_it_as_the_mask_that_it_stands_for() -> None:
    templates, evidence = drawn(6, 4), drawn(3, 4, seed=1)
    found, expected = (
        InferenceProblem(Discrete(templates, log_weights), evidence, closeness=KL()).solve("exact").weights
        for log_weights in (causal_lower_right(3, 6), meant("lower right", 3, 6))
    )
    torch.testing.assert_close(found, expected)


def test_a_bias_of_other_sizes_or_where_no_mask_goes_is_refused() -> None:
    query = drawn(1, 2, 4, 3)
    with pytest.raises(
        ProblemError, match="log_preference is a CausalBias of 1 queries and 4 keys; expected"
    ):
        F.attention(query, query, query, log_preference=causal_upper_left(1, 4))
    layer = MultiheadAttention(6, 2, batch_first=True)
    x = torch.zeros(4, 5, 6)
    with pytest.raises(ProblemError, match="attn_mask is a CausalBias of 4 queries and 5 keys; expected"):
        layer(x, x, x, attn_mask=causal_upper_left(4, 5))
    with pytest.raises(ProblemError, match="key_padding_mask is a CausalBias of torch"):
        layer(x, x, x, key_padding_mask=causal_upper_left(4, 5))
