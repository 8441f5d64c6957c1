"""What accelerators ask for, without one at hand: no look at a value, nothing made elsewhere, graphs without values.

Where a look at a value is counted the library takes the CPU for an accelerator, by the one rule that decides.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

import fenchel
from fenchel import functional as F
from fenchel.arguments import tensor as rule
from fenchel.errors import CostWarning, ProblemError
from fenchel.functional import rows
from fenchel.solver import driver
from tests.accelerator_calls import FIRST, B, D, M, N, Run, masked, op, randn, transport
from tests.compiling import compiled_afresh

aten: Any = torch.ops.aten


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


@pytest.mark.parametrize("name", FIRST)
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

    def bounds_of(estimate: Any) -> tuple[Tensor, ...]:
        return estimate.mean, estimate.dual, estimate.gap, estimate.dual_error

    problem = fenchel.InferenceProblem(fenchel.Discrete(randn(N, D, grad=False)), randn(M, D, grad=False))
    estimators = ("first_order", "second_order", "exact")
    solves = [lambda e=e: bounds_of(problem.solve(e)) for e in estimators]

    def found() -> list[list[Tensor]]:
        return [trained(exact), trained(moved), trained(kept), *(leaves(solve()) for solve in solves)]

    with warnings.catch_warnings(category=CostWarning, action="ignore"):
        expected = found()
    with torch.device("meta"):
        torch.testing.assert_close(found(), expected, rtol=0, atol=0)
        assert not any(x.is_meta for x in trained(dropped))


NAN = {
    "query": lambda x: F.attention(x, *(torch.ones(1, 1, 3, 2),) * 2),
    "key": lambda x: F.attention(torch.ones(1, 1, 3, 2), x, torch.ones(1, 1, 3, 2)),
    "value": lambda x: F.attention(*(torch.ones(1, 1, 3, 2),) * 2, x),
    "relative": lambda x: F.relative_attention(
        *(torch.ones(1, 1, 3, 2),) * 3, x.new_full((1, 1, 5, 2), torch.nan)
    ),
    "log_preference": lambda x: F.attention(*(torch.ones(1, 1, 3, 2),) * 3, log_preference=x[0, 0, :, 0]),
    "variances": lambda x: F.mixture_attention(*(torch.ones(1, 1, 3, 2),) * 2, x),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", NAN)
def test_a_nan_passes_and_is_named_where_that_is_asked_for(looks: Looks, name: str) -> None:
    call, x = NAN[name], torch.ones(1, 1, 3, 2)
    x[0, 0, 1] = torch.nan
    assert call(x).shape == (1, 1, 3, 2)
    with torch.autograd.detect_anomaly(), pytest.raises(ProblemError, match=name):
        call(x)


COMPILED = ["float, learned", "certificate", "second order, shared", "preference: three, learned"]


def test_one_graph_gives_what_eager_gives() -> None:
    torch.manual_seed(0)
    runs = [FIRST[name]() for name in COMPILED]
    expected = [trained(run) for run in runs]
    with compiled_afresh():
        every = torch.compile(lambda: tuple(run() for run in runs), fullgraph=True, backend="aot_eager")
        found = every()
        sum(x.sin().sum() for x in leaves(found) if x.requires_grad).backward()
    torch.testing.assert_close([leaves(x) for x in found], expected)


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
    most = 12 + 6 * calls["_mix"] + calls["_extrapolated"] + 4 * calls["_newton"] + 9 * calls["_line"]
    assert len(looks.found) <= most
