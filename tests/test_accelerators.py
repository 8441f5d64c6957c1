"""What accelerators ask for, without one at hand: no look at a value, nothing made elsewhere, graphs without values.

Where a look at a value is counted the library takes the CPU for an accelerator, by the one rule that decides.
"""

import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
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
from fenchel.functional import exact
from tests.accelerator_calls import FIRST, LOOKING, READS, SECOND_ORDER, WITHOUT_LOOKS, Looks, Run, op
from tests.side_effects import default_dtype, tensors_in


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with default_dtype(torch.float64):
        yield


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


def trained(run: Run | Callable[[], Any]) -> list[Tensor]:
    """What a call gives, after a backward pass to everything that it depends on."""
    found = tensors_in(run())
    torch.cat([x.sin().flatten() for x in found if x.requires_grad]).sum().backward()
    return found


@pytest.mark.parametrize("name", FIRST)
def test_nothing_is_looked_at(looks: Looks, name: str) -> None:
    torch.manual_seed(0)
    run = FIRST[name]()
    with looks:
        trained(run)
    assert looks.found == []


PAIRED = 2 * len((*WITHOUT_LOOKS, *SECOND_ORDER))


# Each op once, without and with a preference in turn: that neither is looked at is above.
@pytest.mark.parametrize("name", [n for i, n in enumerate(FIRST) if i >= PAIRED or i % 2 == i // 2 % 2])
def test_values_need_not_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sparse_weights", "tsallis"):  # whose steps are all alike
        monkeypatch.setattr(import_module(f"fenchel.closeness.{module}"), "STEPS_UNSEEN", 2)
    with FakeTensorMode(allow_non_fake_inputs=True):
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
    runs = [op(estimator="exact", preference=(5, 7)), *(op(name) for name in LOOKING)]
    dropped = op(solving={"dropout_p": 0.5}, preference=(7,))
    problem = fenchel.InferenceProblem(fenchel.Discrete(torch.randn(6, 4)), torch.randn(6, 4))

    def found() -> list[list[Tensor]]:
        solved = [problem.solve(estimator) for estimator in ("first_order", "second_order", "exact")]
        return [
            *(trained(run) for run in runs),
            *([each.mean, each.dual, each.gap, each.dual_error] for each in solved),
        ]

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


@pytest.mark.parametrize("preference", [None, (5, 7)])
@pytest.mark.parametrize("name", LOOKING)
def test_transport_looks_once(looks: Looks, name: str, preference: tuple[int, ...] | None) -> None:
    call = op(name, preference=preference, output_alone=True)
    with looks:
        trained(call)
    assert len(looks.found) == 1


def test_second_order_with_a_preference_a_query_looks_once(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "KERNEL_BYTES", 8 * 6 * 6)
    torch.manual_seed(0)
    shapes = (2, 4, 6, 4), (2, 4, 6, 4), (2, 4, 6, 4), (6, 6)
    operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
    with looks:
        query, key, value, log_preference = operands
        output = F.attention(query, key, value, log_preference=log_preference, estimator="second_order")
        assert len(looks.found) == 1
        output.sin().sum().backward()
        assert len(looks.found) == 2


@pytest.mark.parametrize(("length", "most"), [(1.0, 20), (40.0, 80)])
def test_looks_of_the_exact_driver_are_few(looks: Looks, length: float, most: int) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, 64, 16), torch.randn(1, 4, 64, 16)
    key[:, :, 0] *= length
    with looks:
        F.attention(query, key, key, estimator="exact", tol=1e-6)
    assert len(looks.found) <= most, len(looks.found)
