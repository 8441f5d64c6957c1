"""Layers under ``torch.compile`` with its default backend and ``torch.export``: the values and gradients of eager."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.nn import MultiheadAttention, TransportAttention
from fenchel.nn.preference import ALiBi, KeyPadding, LearnedBias, RelativePosition
from tests.compiling import compiled_afresh
from tests.nn.preferences import EVERY, HEADS, LONGEST, WIDTH, perturbed

TOKENS = 7


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    with compiled_afresh():
        yield


def trained(layer: nn.Module, x: Tensor, is_compiled: bool, **options: Any) -> list[Tensor]:
    """The output of a training step and the gradients of everything that has one."""
    run = torch.compile(layer, fullgraph=True) if is_compiled else layer
    x = x.clone().requires_grad_()
    output = run(x, x, x, **options)
    output = output[0] if isinstance(output, tuple) else output
    (output * torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view_as(output)).sum().backward()
    return [output, x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]  # pyright: ignore[reportReturnType]


def randomised(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


@pytest.mark.parametrize(
    ("preference", "estimator"),
    [
        ("uniform", "second_order"),
        ("masks", "exact"),
        ("relative position", "first_order"),
        ("alibi, learned", "second_order"),
        ("context", "first_order"),
        ("learned bias", "exact"),
        ("gaussian, both", "second_order"),
        ("three, learned", "second_order"),
    ],
)
def test_training_step_is_that_of_eager(preference: str, estimator: str) -> None:
    options: dict[str, Any] = {"preference": EVERY[preference](), "estimator": estimator, "learn_alpha": True}
    layer = randomised(MultiheadAttention(WIDTH, HEADS, batch_first=True, **options).double())
    x, padding = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64), torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, -2:] = True
    options = {"key_padding_mask": padding, "need_weights": False}
    found = trained(copy.deepcopy(layer), x, is_compiled=True, **options)
    expected = trained(layer, x, is_compiled=False, **options)
    assert len(found) == len(expected)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_one_graph_serves_every_length(estimator: str) -> None:
    prior = (
        KeyPadding() * RelativePosition(HEADS) * ALiBi(HEADS, learned=True) * LearnedBias(1, 1, 2 * TOKENS)
    )
    layer = randomised(
        MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=prior, estimator=estimator)
    )
    layer.double()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (TOKENS, TOKENS - 2, 2 * TOKENS - 1):
        padding = torch.zeros(2, tokens, dtype=torch.bool)
        padding[1, -1] = True
        found, expected = [], []
        for run, into in ((compiled, found), (layer, expected)):
            torch.manual_seed(tokens)
            x = torch.randn(2, tokens, WIDTH, dtype=torch.float64, requires_grad=True)
            output, _ = run(x, x, x, key_padding_mask=padding, need_weights=False)
            output.sin().sum().backward()
            into += [output, x.grad]
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# Where one graph ends and another begins, torch's tracer does what torch warns of.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")
@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_transport_compiles_in_parts(estimator: str) -> None:
    layer = TransportAttention(WIDTH, HEADS, cost="squared_euclidean", estimator=estimator, learn_gamma=True)
    layer = randomised(layer).double()
    x, atoms = torch.randn(2, 2, TOKENS, WIDTH, dtype=torch.float64)
    found = []
    for module, backend in ((copy.deepcopy(layer), "aot_eager"), (layer, None)):
        run = torch.compile(module, backend=backend) if backend else module
        output = run(x, atoms=atoms)
        output.sin().sum().backward()
        found.append([output, *(parameter.grad for parameter in module.parameters())])
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=1e-9)


EXPORTED = [
    *(
        "causal",
        "key padding",
        "window",
        "uniform",
        "relative position",
        "alibi",
        "alibi, learned",
        "quadratic",
    ),
    *("gaussian", "gaussian, both", "learned bias", "learned bias, shared", "context", "tempered, learned"),
    *("additive", "location", "three, learned"),
]


@pytest.mark.parametrize(
    ("name", "estimator", "strict"),
    [
        *((name, "first_order", False) for name in EXPORTED),
        *(("three, learned", estimator, False) for estimator in ("second_order", "exact")),
        *(("three, learned", estimator, True) for estimator in ("first_order", "exact")),
    ],
)
def test_every_family_is_exported_for_any_number_of_tokens(name: str, estimator: str, strict: bool) -> None:
    preference = perturbed(EVERY[name]())
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=preference, estimator=estimator)
    layer.double().eval()

    def inputs(batch: int, tokens: int) -> tuple[Any, ...]:
        padding = torch.zeros(batch, tokens, dtype=torch.bool)
        padding[-1, -1] = True
        return *(torch.randn(batch, tokens, WIDTH, dtype=torch.float64),) * 3, padding, False

    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2, max=LONGEST)}
    shapes = (sizes, sizes, sizes, sizes, None)
    exported = torch.export.export(layer, inputs(2, 8), dynamic_shapes=shapes, strict=strict)
    for given in (inputs(1, 2), inputs(3, LONGEST), inputs(2, 8)):
        torch.testing.assert_close(exported.module()(*given), layer(*given), rtol=1e-9, atol=1e-10)
