"""Layers under ``torch.compile`` and ``torch.export``: the values and gradients of eager.

The default backend, which writes and compiles C++ for seconds, gets one training step of each estimator; that the
other steps are one graph, which autograd can take apart, and right is seen without it.
"""

from __future__ import annotations

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


def inputs(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    padding = torch.zeros(batch, tokens, dtype=torch.bool)
    padding[-1, -1] = True
    return torch.randn(batch, tokens, WIDTH, dtype=torch.float64), padding


def randomised(layer: nn.Module) -> Any:
    for parameter in layer.double().parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def trained(layer: nn.Module, run: Any, *given: Any, **options: Any) -> list[Any]:
    """The output of a training step and the gradients of everything that has one."""
    layer.zero_grad()
    output = run(*given, **options)
    output = output[0] if isinstance(output, tuple) else output
    output.sin().sum().backward()
    return [output, *(parameter.grad for parameter in layer.parameters())]


def attending(layer: nn.Module, run: Any, x: Tensor, padding: Tensor) -> list[Any]:
    """Likewise of self-attention, and the gradient of what attends to itself."""
    x = x.clone().requires_grad_()
    return [*trained(layer, run, x, x, x, padding, need_weights=False), x.grad]


@pytest.mark.parametrize(
    ("preference", "estimator", "backend"),
    [
        ("uniform", "second_order", "aot_eager"),
        ("masks", "exact", "inductor"),
        ("relative position", "first_order", "inductor"),
        ("alibi, learned", "second_order", "inductor"),
        ("context", "first_order", "aot_eager"),
        ("learned bias", "exact", "aot_eager"),
        ("gaussian, both", "second_order", "aot_eager"),
        ("three, learned", "second_order", "aot_eager"),
    ],
)
def test_training_step_is_that_of_eager(preference: str, estimator: str, backend: str) -> None:
    options: dict[str, Any] = {"preference": EVERY[preference](), "estimator": estimator, "learn_alpha": True}
    layer, given = (
        randomised(MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)),
        inputs(2, TOKENS),
    )
    runs = torch.compile(layer, fullgraph=True, backend=backend), layer
    found, expected = (attending(layer, run, *given) for run in runs)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("estimator", "backend"), [("first_order", "eager"), ("second_order", "eager"), ("exact", "aot_eager")]
)
def test_one_graph_serves_every_length(estimator: str, backend: str) -> None:
    prior = (
        KeyPadding() * RelativePosition(HEADS) * ALiBi(HEADS, learned=True) * LearnedBias(1, 1, 2 * TOKENS)
    )
    options: dict[str, Any] = {"preference": prior, "estimator": estimator}
    layer = randomised(MultiheadAttention(WIDTH, HEADS, batch_first=True, **options))
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for tokens in (TOKENS, TOKENS - 2, 2 * TOKENS - 1):
        given = inputs(2, tokens)
        found, expected = (attending(layer, run, *given) for run in (compiled, layer))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# Where one graph ends and another begins, torch's tracer does what torch warns of.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")
@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_transport_compiles_in_parts(estimator: str) -> None:
    options: dict[str, Any] = {"cost": "squared_euclidean", "estimator": estimator, "learn_gamma": True}
    layer = randomised(TransportAttention(WIDTH, HEADS, **options))
    x, atoms = torch.randn(2, 2, TOKENS, WIDTH, dtype=torch.float64)
    runs = torch.compile(layer, backend="aot_eager"), layer
    found, expected = (trained(layer, run, x, atoms=atoms) for run in runs)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


EXPORTED = [
    *("causal", "key padding", "window", "uniform", "relative position", "alibi, learned", "quadratic"),
    *("gaussian, both", "learned bias", "learned bias, shared", "context", "tempered, learned", "additive"),
    *("location", "three, learned", "proportional", "additive, in blocks"),
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

    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2, max=LONGEST)}

    def given(batch: int, tokens: int) -> tuple[Any, ...]:
        x, padding = inputs(batch, tokens)
        return x, x, x, padding, False

    shapes = (sizes, sizes, sizes, sizes, None)
    exported = torch.export.export(layer, given(2, 8), dynamic_shapes=shapes, strict=strict)
    for one in (given(1, 2), given(3, LONGEST), given(2, 8)):
        torch.testing.assert_close(exported.module()(*one), layer(*one), rtol=1e-9, atol=1e-10)
