"""What accelerators ask for, without one at hand: no look at a value, nothing made elsewhere, graphs without values.

Where a look at a value is counted the library takes the CPU for an accelerator, by the one rule that decides.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._subclasses import FakeTensorMode

import fenchel
from fenchel import functional as F
from fenchel import tensors as rule
from fenchel.errors import CostWarning, ProblemError
from fenchel.estimators import exact_solver
from fenchel.functional import exact
from tests import accelerator_calls
from tests.accelerator_calls import FIRST, READS, B, D, Looks, M, N, Run, masked, op, randn, transport
from tests.compiling import compiled_afresh


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


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
    assert len(own) >= 5
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
    torch.cat([x.sin().flatten() for x in found if x.requires_grad]).sum().backward()
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


NAN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "query": lambda x, one: F.attention(x, one, one),
    "key": lambda x, one: F.attention(one, x, one),
    "value": lambda x, one: F.attention(one, one, x),
    "relative": lambda x, one: F.relative_attention(one, one, one, torch.cat([x, x[:, :, 1:]], 2)),
    "log_preference": lambda x, one: F.attention(one, one, one, log_preference=x[0, 0, :, 0]),
    "variances": lambda x, one: F.mixture_attention(one, one, x),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", NAN)
def test_a_nan_passes_and_is_named_where_that_is_asked_for(looks: Looks, name: str) -> None:
    x, one = torch.ones(2, 1, 1, 3, 2)
    x[0, 0, 1] = torch.nan
    assert NAN[name](x, one).shape == (1, 1, 3, 2)
    with torch.autograd.detect_anomaly(), pytest.raises(ProblemError, match=name):
        NAN[name](x, one)


COMPILED = ["float, learned", "certificate", "second order, shared", "preference: three, learned"]


def test_one_graph_gives_what_eager_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []

    def noted(*shape: int) -> Tensor:
        made.append(randn(*shape))
        return made[-1]

    monkeypatch.setattr(accelerator_calls, "randn", noted)
    torch.manual_seed(0)
    runs = [FIRST[name]() for name in COMPILED]
    expected, found = [], []
    with compiled_afresh():
        compiled = torch.compile(lambda: tuple(run() for run in runs), fullgraph=True, backend="aot_eager")
        for every, into in ((compiled, found), (lambda: tuple(run() for run in runs), expected)):
            into += [*trained(every), *(x.grad for x in made)]
            for x in made:
                x.grad = None
    assert len(made) >= 3 * len(COMPILED) - 1
    torch.testing.assert_close(found, expected)


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
    monkeypatch.setattr(exact, "KERNEL_BYTES", 8 * N * M)
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
    """One look a mixing, eight a Newton step, two whenever either starts, and ten a call."""
    calls = {"_mix": 0, "_extrapolated": 0, "_newton": 0, "_line": 0}

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(exact_solver, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in calls:
        monkeypatch.setattr(exact_solver, name, counted(name))
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, 64, 16), torch.randn(1, 4, 64, 16)
    key[:, :, 0] *= length
    with looks:
        F.attention(query, key, key, estimator="exact", tol=1e-6)
    assert (calls["_line"] == 0) == mixed_alone
    most = 10 + 2 * (calls["_mix"] + calls["_newton"]) + calls["_extrapolated"] + 8 * calls["_line"]
    assert len(looks.found) <= most
