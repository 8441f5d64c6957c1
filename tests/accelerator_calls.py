"""Calls of every op and layer that looks at no value, and what they are made of."""

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import fenchel
from fenchel import functional as F
from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention
from fenchel.nn.evidence import RelativeKeys, Rotary, TransformerXL
from fenchel.nn.preference import GridPosition, GridWindow, QuadraticGridPosition
from tests.nn.preferences import EVERY, HEADS, WIDTH

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
    options = {"gamma": 1.0, **options}
    return lambda: F.transport_attention(query, key, value, cost=cost, **options)


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


aten: Any = torch.ops.aten

SHAPED = {
    aten.nonzero, aten.equal, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive,
    aten.bincount, aten._linalg_check_errors, aten._local_scalar_dense,
}  # fmt: skip
"""Operations that wait for values wherever these are."""

BY_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
READS = ("__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "cpu")


class Looks(TorchDispatchMode):
    """Notes what waits for values: reads of elements, and shapes that depend on elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        masked = packet in BY_INDEX and any(x is not None and x.dtype == torch.bool for x in args[1])
        repeats = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if packet in SHAPED or masked or repeats:
            self.note(str(func))
        return func(*args, **kwargs)

    def note(self, what: str) -> None:
        own = [f for f in traceback.extract_stack() if "/fenchel/" in f.filename]
        self.found.append(
            f"{what} at {own[-1].filename.rsplit('/fenchel/')[-1]}:{own[-1].lineno}" if own else what
        )

    def noted(self, name: str) -> Callable[..., Any]:
        """A method of tensors that reads: within operators not every read reaches a mode."""
        method = getattr(Tensor, name)

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            before, seen = len(self.found), _get_current_dispatch_mode() is self
            value = method(tensor, *args, **kwargs)
            if seen:
                del self.found[before:]
                self.note(name)
            return value

        return read
