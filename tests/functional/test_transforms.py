"""``torch.func``: gradients are those of autograd, vmap is a loop, and what is not there says so."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, func

from fenchel import Discrete, InferenceProblem, OptimalTransport, ProblemError, Tsallis
from fenchel import functional as F
from tests.functional.calls import ESTIMATORS, call

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

Loss = Callable[..., Tensor]


def weighted(output: Tensor) -> Tensor:
    return (output.sin() * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)).sum()


def check_against_autograd(loss: Loss, tensors: dict[str, Tensor]) -> None:
    given = {name: tensor.detach() for name, tensor in tensors.items()}
    found = func.grad(lambda parts: loss(**parts))(given)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    expected = torch.autograd.grad(loss(**leaves), list(leaves.values()))
    for (name, gradient), other in zip(found.items(), expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
    assert all(bool((gradient != 0).any()) for gradient in expected)


OPS: dict[str, Callable[[str], Loss]] = {
    "attention": lambda e: lambda **x: weighted(F.attention(**x, estimator=e)),
    "with certificate": lambda e: lambda **x: weighted(F.attention_with_certificate(**x, estimator=e)[0]),
    "weights": lambda e: lambda value, **x: weighted(F.attention_weights(**x, estimator=e) @ value),
}


@pytest.mark.parametrize("preference", [None, (7,), (4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("op", OPS)
def test_gradients_are_those_of_autograd(op: str, estimator: str, preference: tuple[int, ...] | None) -> None:
    tensors = call(preference=preference, alpha=(4, 1), masked=0.0)
    check_against_autograd(OPS[op](estimator), tensors)


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_the_gap_too(estimator: str) -> None:
    tensors = call(preference=(5, 7), masked=0.0)
    del tensors["value"]
    check_against_autograd(lambda **x: weighted(F.gap(**x, estimator=estimator)), tensors)


@pytest.mark.parametrize("transport", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimates_too(estimator: str, transport: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"templates": (7, 3), "log_weights": (5, 7), "evidence": (5, 3)}
    data = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in shapes.items()
    }
    data["alpha"] = torch.rand(5, dtype=torch.float64, generator=generator) + 0.5

    def loss(templates: Tensor, log_weights: Tensor, evidence: Tensor, alpha: Tensor) -> Tensor:
        closeness = OptimalTransport("squared_euclidean", 0.7) if transport else None
        problem = InferenceProblem(Discrete(templates, log_weights), evidence, alpha, closeness)
        estimate = problem.solve(estimator)
        return weighted(estimate.mean) + weighted(estimate.dual) + weighted(estimate.weights)

    check_against_autograd(loss, data)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_vmap_is_a_loop_forwards_and_backwards(estimator: str) -> None:
    tensors = {name: tensor.detach() for name, tensor in call(preference=(1, 4, 5, 7)).items()}
    shared = {name: tensors.pop(name) for name in ("key", "scale", "alpha")}
    several = {name: torch.stack([tensor, 0.5 * tensor, 2 * tensor]) for name, tensor in tensors.items()}

    def loss(parts: dict[str, Tensor]) -> Tensor:
        return weighted(F.attention(**parts, **shared, estimator=estimator))

    mapped = {"values": func.vmap(loss)(several), **func.vmap(func.grad(loss))(several)}
    for index in range(3):
        one = {name: tensor[index] for name, tensor in several.items()}
        expected = {"values": loss(one), **func.grad(loss)(one)}
        for name, part in expected.items():
            torch.testing.assert_close(mapped[name][index], part, rtol=1e-9, atol=1e-10)


def test_dropout_differs_along_a_mapped_dimension_where_that_is_wanted() -> None:
    tensors = {name: tensor.detach() for name, tensor in call(preference=(5, 7)).items()}

    def output(preference: Tensor) -> Tensor:
        given = {**tensors, "log_preference": preference}
        loss = lambda p: F.attention(**{**given, "log_preference": p}, dropout_p=0.4).sum()  # noqa: E731
        return func.grad(loss)(preference)

    same = torch.stack([tensors["log_preference"]] * 2)
    one, other = func.vmap(output, randomness="different")(same)
    assert not torch.equal(one, other)
    one, other = func.vmap(output, randomness="same")(same)
    assert torch.equal(one, other)


SECOND: dict[str, tuple[str, Loss]] = {
    "exact": ("exact attention", lambda x: F.attention(x, x, x, estimator="exact")),
    "preference": (
        "attention with a gradient to its preference",
        lambda x: F.attention(x, x, x, log_preference=x @ x.mT),
    ),
    "second order": (
        "second-order attention with a preference a query",
        lambda x: F.attention(x, x, x, log_preference=(x @ x.mT).detach(), estimator="second_order"),
    ),
    "transport": (
        "transport attention",
        lambda x: F.transport_attention(x, x, x, gamma=1.0, cost="squared_euclidean"),
    ),
    "exact transport": (
        "(transport attention|an estimate)",
        lambda x: F.transport_attention(x, x, x, gamma=1.0, cost="squared_euclidean", estimator="exact"),
    ),
    "estimate": ("an estimate", lambda x: InferenceProblem(Discrete(x), x).solve("exact").dual),
    "estimate, gradient ascent": (
        "an estimate",
        lambda x: InferenceProblem(Discrete(x), x).solve("gradient_ascent", max_steps=5, throw=False).dual,
    ),
    "estimate, second order": (
        "an estimate",
        lambda x: InferenceProblem(Discrete(x), x).solve("second_order").dual,
    ),
}


@pytest.mark.parametrize("what", SECOND)
def test_second_derivatives_that_are_not_there_are_refused_by_name(what: str) -> None:
    name, op = SECOND[what]
    x = torch.randn(1, 2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(x: Tensor) -> Tensor:
        return op(x).sin().sum()

    with pytest.raises(ProblemError, match=f"second derivative of {name}"):
        func.grad(lambda x: func.grad(loss)(x).square().sum())(x)
    x.requires_grad_()
    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    with pytest.raises(ProblemError, match=f"second derivative of {name}"):
        first.square().sum().backward()


MIXTURE = F.Mixture(torch.full((1,), 1.5, dtype=torch.float64))


def test_what_looks_at_values_cannot_be_mapped() -> None:
    x = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    with pytest.raises(ProblemError, match=re.escape("torch.vmap cannot map transport attention")):
        func.vmap(lambda x: F.transport_attention(x, x, x, gamma=1.0, cost="cosine"))(x)
    for name, kind in {
        "attention under Tsallis": {"closeness": Tsallis(1.5)},
        "mixture": {"variant": MIXTURE},
    }.items():
        with pytest.raises(ProblemError, match=f"torch.vmap cannot map exact {name}"):
            func.vmap(lambda x, kind=kind: F.infer(x, x, x, **kind, estimator="exact").output)(x)
    with pytest.raises(ProblemError, match=re.escape("torch.vmap cannot map an inference problem")):
        func.vmap(lambda x: InferenceProblem(Discrete(x), x).solve("exact").mean)(x)
