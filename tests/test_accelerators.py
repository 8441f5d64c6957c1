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
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import fenchel
from fenchel import functional as F
from fenchel.arguments import tensor as rule
from fenchel.functional import output, rows
from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention, TransportAttention
from fenchel.nn.evidence import RelativeKeys, Rotary, TransformerXL
from fenchel.nn.preference import GridPosition, GridWindow, QuadraticGridPosition
from fenchel.solver import driver
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
    for name in READS:
        monkeypatch.setattr(Tensor, name, mode.noted(name))
    monkeypatch.setattr(rule, "HOSTS", frozenset())
    return mode


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
    assert all(x.device.type == "cpu" for x in found)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """In the place of torch's, which asks for the device's kernels."""
    sharing = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(sharing, 1), value.repeat_interleave(sharing, 1)
    logits, mask = options["scale"] * (query @ key.mT), options["attn_mask"]
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1) @ value


@pytest.mark.parametrize("name", FIRST)
def test_all_is_made_where_the_tensors_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "scaled_dot_product_attention", plain_attention)
    with FakeTensorMode():
        with torch.device("cuda"):
            run = FIRST[name]()
        # A backward pass asks for the device's streams, which are not here.
        found = leaves(run())
    assert all(x.device.type == "cuda" for x in found)


SOME = [
    "float, learned",
    "second order, certificate",
    "orders of heads",
    "relative",
    "mixture",
    "hashing",
    "rotary",
]


@pytest.mark.parametrize(
    "name", [*SOME, "preference: three, learned", "preference: location", "continuous layer"]
)
def test_the_default_device_does_not_matter(name: str) -> None:
    torch.manual_seed(0)
    run = FIRST[name]()
    expected = trained(run)
    with torch.device("meta"):
        found = trained(run)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_default_device_does_not_matter_to_a_solver() -> None:
    torch.manual_seed(0)
    exact, dropped = (
        op(F.attention, estimator="exact", floating=(M, N)),
        op(F.attention, dropout_p=0.5, floating=(N,)),
    )
    moved, kept = transport(), transport("squared_euclidean", gamma=1e-2)
    problem = fenchel.InferenceProblem(fenchel.Discrete(randn(N, D, grad=False)), randn(M, D, grad=False))
    runs: list[Run] = [exact, moved, kept, *(lambda e=e: problem.solve(e).mean for e in fenchel_estimators())]
    with pytest.warns(fenchel.CostWarning):
        expected = [trained(run) for run in runs]
    with torch.device("meta"):
        found = [trained(run) for run in runs]
        (output,) = trained(dropped)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not output.is_meta


def fenchel_estimators() -> tuple[str, ...]:
    return "first_order", "second_order", "exact"


@pytest.mark.parametrize("run", [transport, lambda: transport(log_preference=masked())])
def test_transport_looks_once(looks: Looks, run: Callable[[], Run]) -> None:
    torch.manual_seed(0)
    call = run()
    with looks:
        trained(call)
    assert len(looks.found) == 1


def test_second_order_with_a_preference_a_query_looks_once(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "KERNEL_BYTES", 8 * N * M)
    torch.manual_seed(0)
    operands = randn(B, 4, M, D), randn(B, 4, N, D), randn(B, 4, N, D), randn(M, N)
    with looks:
        query, key, value, log_preference = operands
        output = F.attention(query, key, value, log_preference=log_preference, estimator="second_order")
        assert len(looks.found) == 1
        output.sin().sum().backward()
        assert len(looks.found) == 2
    gradients = [x.grad for x in operands]
    monkeypatch.undo()
    for x in operands:
        x.grad = None
    again = F.attention(query, key, value, log_preference=log_preference, estimator="second_order")
    again.sin().sum().backward()
    torch.testing.assert_close([output, *gradients], [again, *(x.grad for x in operands)])


@pytest.mark.parametrize(("length", "mixed_alone"), [(1.0, True), (40.0, False)])
def test_looks_of_the_exact_driver(
    looks: Looks, monkeypatch: pytest.MonkeyPatch, length: float, mixed_alone: bool
) -> None:
    """One look a mixing, nine a Newton step, and what a call costs."""
    calls = {"_mix": 0, "_extrapolated": 0, "_newton": 0, "_line": 0}

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(driver, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in calls:
        monkeypatch.setattr(driver, name, counted(name))
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, 64, 16), torch.randn(1, 4, 64, 16)
    key[:, :, 0] *= length
    with looks:
        F.attention(query, key, key, estimator="exact", tol=1e-6)
    assert (calls["_line"] == 0) == mixed_alone
    print(calls, len(looks.found), looks.found)
    most = 12 + 6 * calls["_mix"] + calls["_extrapolated"] + 4 * calls["_newton"] + 9 * calls["_line"]
    assert len(looks.found) <= most
