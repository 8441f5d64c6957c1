"""Calls of every op and layer that looks at no value, and what they are made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fenchel
from fenchel import functional as F
from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention
from fenchel.nn.evidence import RelativeKeys, Rotary, TransformerXL
from fenchel.nn.preference import GridPosition, GridWindow, QuadraticGridPosition
from tests.nn.preferences import EVERY, HEADS, WIDTH

__all__ = ["FIRST", "B", "D", "M", "N", "Run", "masked", "op", "randn", "transport"]

B, M, N, D = 2, 6, 6, 4

Run = Callable[[], Any]


def randn(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, requires_grad=grad)


def op(
    function: Callable[..., Any], *shape: int, floating: tuple[int, ...] | None = None, **options: Any
) -> Run:
    """A call of an op of attention, with a floating preference of some shape."""
    query, key, value = randn(B, 4, M, D), randn(B, *(shape or (4,)), N, D), randn(B, *(shape or (4,)), N, D)
    if floating is not None:
        options["log_preference"] = randn(*floating)
    operands = (query, key) if function in (F.attention_weights, F.gap) else (query, key, value)
    return lambda: function(*operands, **options)


def numbers(*shape: int) -> Tensor:
    return torch.rand(*shape) + 0.5


def causal() -> Tensor:
    return torch.ones(M, N, dtype=torch.bool).tril()


def masked() -> Tensor:
    return torch.zeros(M, N).masked_fill(~causal(), -torch.inf)


def mixture(**options: Any) -> Run:
    query, means, variances = randn(B, 4, M, D), randn(B, 4, N, D), numbers(B, 4, N, D).requires_grad_()
    return lambda: F.mixture_attention(query, means, variances, **options)


def relative(function: Callable[..., Any] = F.relative_attention, **options: Any) -> Run:
    query, key, value, table = (
        randn(B, 4, M, D),
        randn(B, 4, N, D),
        randn(B, 4, N, D),
        randn(1, 1, M + N - 1, D),
    )
    return lambda: function(query, key, value, table, **options)


def hashing() -> Run:
    query, value, rotations = randn(B, 2, 12, D), randn(B, 2, 12, D), randn(2, D, 2, 2, grad=False)
    padding = torch.zeros(B, 12, dtype=torch.bool)
    return lambda: F.hashing_attention(
        query, query, value, F.hash_buckets(query, rotations), chunk=4, causal=True, key_padding=padding
    )


def transport(cost: str = "dot", **options: Any) -> Run:
    query, key, value = randn(B, 4, M, D), randn(B, 4, N, D), randn(B, 4, N, D)
    return lambda: F.transport_attention(query, key, value, cost=cost, **{"gamma": 1.0, **options})


def layer(preference: Callable[[], Any] | None = None, **options: Any) -> Run:
    """A training step of multi-head attention."""
    made = None if preference is None else preference()
    built = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=made, **options)
    x, padding = randn(B, N, WIDTH), torch.zeros(B, N, dtype=torch.bool)
    return lambda: built(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def other_layer(kind: type[nn.Module], *operands: int, **options: Any) -> Run:
    built = kind(WIDTH, HEADS, **options)
    x = randn(B, N, WIDTH)
    return lambda: built(*[x] * operands[0])


FIRST: dict[str, Callable[[], Run]] = {
    "plain": lambda: op(F.attention),
    "bool": lambda: op(F.attention, log_preference=causal()),
    "float": lambda: op(F.attention, log_preference=masked()),
    "float, learned": lambda: op(F.attention, floating=(M, N)),
    "float, shared": lambda: op(F.attention, floating=(4, 1, N)),
    "alpha and scale": lambda: op(F.attention, alpha=numbers(4, 1), scale=numbers(1)),
    "grouped": lambda: op(F.attention, 2, enable_gqa=True, log_preference=masked()),
    "weights": lambda: op(F.attention_weights, log_preference=masked()),
    "gap": lambda: op(F.gap, log_preference=masked()),
    "certificate": lambda: op(F.attention_with_certificate, log_preference=masked()),
    "certificate, shared": lambda: op(F.attention_with_certificate, floating=(N,)),
    "second order": lambda: op(F.attention, estimator="second_order"),
    "second order, shared": lambda: op(F.attention, estimator="second_order", floating=(4, 1, N)),
    "second order, certificate": lambda: op(
        F.attention_with_certificate, estimator="second_order", floating=(N,)
    ),
    "sparsemax": lambda: op(F.attention, closeness=fenchel.Tsallis(2), log_preference=masked()),
    "entmax": lambda: op(F.attention_with_certificate, closeness=fenchel.Tsallis(1.5, "csiszar")),
    "orders of heads": lambda: op(
        F.attention, closeness=fenchel.Tsallis(numbers(4, 1) + 0.5), floating=(M, N)
    ),
    "relative": lambda: relative(log_preference=masked()),
    "relative, certificate": lambda: relative(F.relative_attention_with_certificate),
    "mixture": lambda: mixture(log_preference=masked()),
    "mixture, second order": lambda: mixture(estimator="second_order"),
    "hashing": hashing,
    "layer": layer,
    "layer, second order": lambda: layer(estimator="second_order", learn_alpha=True),
    "layer of mixtures": lambda: other_layer(MixtureAttention, 3),
    "continuous layer": lambda: other_layer(ContinuousAttention, 2),
    "rotary": lambda: layer(evidence=Rotary(WIDTH // HEADS)),
    "relative keys": lambda: layer(evidence=RelativeKeys(HEADS, WIDTH // HEADS, max_distance=2)),
    "Transformer-XL": lambda: layer(evidence=TransformerXL(HEADS, WIDTH // HEADS, width=8)),
    **{f"preference: {name}": lambda made=made: layer(made) for name, made in EVERY.items()},
    "preference: grid position": lambda: layer(lambda: GridPosition(HEADS, (2, 3))),
    "preference: grid window": lambda: layer(lambda: GridWindow((2, 3), reach=1)),
    "preference: quadratic grid": lambda: layer(lambda: QuadraticGridPosition((2, 3), HEADS, kernel=(1, 3))),
}
