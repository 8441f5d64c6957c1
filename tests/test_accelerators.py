"""What accelerators ask for, without one at hand: no look at a value, nothing made elsewhere, graphs without values.

Where a look at a value is counted the library takes the CPU for an accelerator, by the one rule that decides.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import fenchel
from fenchel import functional as F
from fenchel.arguments import tensor as rule
from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention, TransportAttention
from fenchel.nn.evidence import RelativeKeys, Rotary, TransformerXL
from fenchel.nn.preference import GridPosition, GridWindow, QuadraticGridPosition
from tests.compiling import compiled_afresh
from tests.nn.preferences import EVERY, HEADS, WIDTH

aten: Any = torch.ops.aten
B, M, N, D = 2, 6, 6, 4

Run = Callable[[], Any]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Looks(TorchDispatchMode):
    """Counts what waits for values: reads of an element, and shapes that depend on elements."""

    ALWAYS = {
        aten._local_scalar_dense, aten.nonzero, aten.equal, aten.is_nonzero, aten.masked_select, aten._unique2,
        aten.unique_dim, aten.unique_consecutive, aten.bincount, aten._linalg_check_errors,
    }  # fmt: skip
    BY_BOOL = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        masked = packet in self.BY_BOOL and any(x is not None and x.dtype == torch.bool for x in args[1])
        repeats = func is aten.repeat_interleave.Tensor and (kwargs or {}).get("output_size") is None
        if packet in self.ALWAYS or masked or repeats:
            own = [
                f"{f.filename.split('/src/')[-1]}:{f.lineno}"
                for f in traceback.extract_stack()
                if "/src/" in f.filename
            ]
            self.found.append(f"{func} at {own[-1] if own else '?'}")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The mode, also inside of custom operators, in a library that takes the CPU for an accelerator."""
    mode = Looks()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return function(*args, **kwargs)

        return call

    own = [operator for name, operator in OPDEFS.items() if name.startswith("fenchel::")]
    assert len(own) >= 6
    for operator in own:
        monkeypatch.setitem(operator._backend_fns, None, watched(operator._backend_fns[None]))
    monkeypatch.setattr(rule, "HOSTS", frozenset())
    return mode


def randn(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, device="cpu", requires_grad=grad)


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
    return torch.rand(*shape, device="cpu") + 0.5


def causal() -> Tensor:
    return torch.ones(M, N, dtype=torch.bool, device="cpu").tril()


def masked() -> Tensor:
    return torch.zeros(M, N, device="cpu").masked_fill(~causal(), -torch.inf)


def mixture(**options: Any) -> Run:
    means, variances = randn(B, 4, N, D), numbers(B, 4, N, D).requires_grad_()
    return lambda: F.mixture_attention(randn(B, 4, M, D), means, variances, **options)


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
    padding = torch.zeros(B, 12, dtype=torch.bool, device="cpu")
    return lambda: F.hashing_attention(
        query, query, value, F.hash_buckets(query, rotations), chunk=4, causal=True, key_padding=padding
    )


def transport(cost: str = "dot", **options: Any) -> Run:
    query, key, value = randn(B, 4, M, D), randn(B, 4, N, D), randn(B, 4, N, D)
    return lambda: F.transport_attention(query, key, value, cost=cost, **{"gamma": 1.0, **options})


def layer(preference: Callable[[], Any] | None = None, **options: Any) -> Run:
    """A training step of multi-head attention."""
    made = None if preference is None else preference()
    built = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=made, device="cpu", **options)
    x, padding = randn(B, N, WIDTH), torch.zeros(B, N, dtype=torch.bool, device="cpu")
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


def leaves(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return [leaf for part in found for leaf in leaves(part)] if isinstance(found, tuple) else []


def trained(run: Run) -> list[Tensor]:
    """What a call gives, after a backward pass to everything that it depends on."""
    found = leaves(run())
    sum(x.sin().sum() for x in found if x.requires_grad).backward()
    return found


@pytest.mark.parametrize("name", FIRST)
def test_nothing_is_looked_at(looks: Looks, name: str) -> None:
    torch.manual_seed(0)
    run = FIRST[name]()
    with looks:
        trained(run)
    assert looks.found == []


@pytest.mark.parametrize("name", FIRST)
def test_values_need_not_exist(name: str) -> None:
    with FakeTensorMode():
        found = trained(FIRST[name]())
    assert all(x.device.type == "cpu" and not x.is_meta for x in found)
