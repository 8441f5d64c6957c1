"""Estimators as objects in layers, in ``use_estimator`` and in models of transformers: the same as their names."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import Constrained, Exact, FirstOrder, GradientAscent, SecondOrder
from fenchel.errors import FenchelError, ProblemError
from fenchel.nn import (
    ContinuousAttention,
    MixtureAttention,
    MultiheadAttention,
    TransportAttention,
    use_estimator,
)

WIDTH, HEADS = 8, 2

LAYERS: list[Callable[..., Any]] = [
    MultiheadAttention,
    MixtureAttention,
    partial(TransportAttention, cost="squared_euclidean"),
    ContinuousAttention,
]

SAME: list[tuple[Any, dict[str, Any]]] = [
    (FirstOrder(), {"estimator": "first_order"}),
    (SecondOrder(), {"estimator": "second_order"}),
    (Exact(), {"estimator": "exact"}),
    (Exact(tol=1e-3), {"estimator": "exact", "tol": 1e-3}),
    (Exact(tol=1e-7, max_steps=90), {"estimator": "exact", "tol": 1e-7, "max_steps": 90}),
]

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"estimator": Exact}, "estimator is"),
    ({"estimator": GradientAscent()}, "estimator is"),
    ({"estimator": Constrained(radius=0.1)}, "estimator is"),
    ({"estimator": Exact(throw=False)}, "estimator is"),
    ({"estimator": Exact(memory_budget=2**30)}, "estimator is"),
    ({"estimator": Exact(tol=-1.0)}, "tol is"),
    ({"estimator": Exact(max_steps=0)}, "max_steps is"),
    ({"estimator": Exact(tol=1e-3), "tol": 1e-3}, "tol or max_steps is given beside estimator"),
    ({"estimator": FirstOrder(), "max_steps": 9}, "tol or max_steps is given beside estimator"),
    ({"estimator": None}, "estimator is"),
]


def x() -> Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def layer(kind: Callable[..., Any], **options: Any) -> Any:
    torch.manual_seed(0)
    made = kind(WIDTH, HEADS, batch_first=True, dtype=torch.float64, **options)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made.eval()


def answer(module: nn.Module) -> Tensor:
    found = module(x(), x(), x())
    return found if isinstance(found, Tensor) else found[0]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("given", "named"), SAME)
def test_an_object_is_its_name_with_options(
    kind: Callable[..., Any], given: Any, named: dict[str, Any]
) -> None:
    expected = layer(kind, **named)
    built, assigned = layer(kind, estimator=given), layer(kind, tol=0.5)
    assigned.estimator = given
    pickled = pickle.loads(pickle.dumps(built))  # noqa: S301 -- its own
    for one in (built, assigned, copy.deepcopy(built), pickled):
        assert (one.estimator, one.tol, one.max_steps) == (
            named["estimator"],
            named.get("tol"),
            named.get("max_steps", 50),
        )
        assert repr(one) == repr(expected)
        torch.testing.assert_close(answer(one), answer(expected), rtol=0, atol=0)
    assert list(built.state_dict()) == list(expected.state_dict())


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("given", "named"), SAME)
def test_use_estimator_takes_objects(kind: Callable[..., Any], given: Any, named: dict[str, Any]) -> None:
    switched = layer(kind, estimator="second_order", tol=1e-2)
    before = answer(switched)
    with use_estimator(switched, **named):
        expected = answer(switched)
    with use_estimator(switched, given):
        torch.testing.assert_close(answer(switched), expected, rtol=0, atol=0)
    torch.testing.assert_close(answer(switched), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_tolerance_of_an_object_counts(kind: Callable[..., Any]) -> None:
    rough, close = (answer(layer(kind, estimator=Exact(tol=tol))) for tol in (0.5, 1e-8))
    assert not torch.equal(rough, close)
    switched = layer(kind)
    with use_estimator(switched, Exact(tol=0.5)):
        torch.testing.assert_close(answer(switched), rough, rtol=0, atol=0)


def test_a_name_that_is_assigned_keeps_the_tolerance() -> None:
    given = layer(MultiheadAttention, estimator=Exact(tol=1e-3, max_steps=70))
    given.estimator = "first_order"
    given.estimator = "exact"
    assert (given.tol, given.max_steps) == (1e-3, 70)


class TestTransformers:
    @staticmethod
    def model() -> Any:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        sizes = {"vocab_size": 9, "hidden_size": WIDTH, "intermediate_size": 8}
        config = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=HEADS)
        return transformers.BertModel(config).eval()

    @staticmethod
    def states(model: Any) -> Tensor:
        with torch.no_grad():
            return model(torch.tensor([[1, 2, 3, 4]])).last_hidden_state

    @pytest.mark.parametrize(("given", "named"), SAME)
    def test_use_backend_takes_objects(self, given: Any, named: dict[str, Any]) -> None:
        from fenchel.integrations.transformers import use_backend

        model = self.model()
        with use_backend(model, **named, alpha=3.0):
            expected = self.states(model)
        with use_backend(model, given, alpha=3.0):
            torch.testing.assert_close(self.states(model), expected, rtol=0, atol=0)

    @pytest.mark.parametrize(("options", "message"), WRONG)
    def test_use_backend_refuses_what_it_cannot_use(self, options: dict[str, Any], message: str) -> None:
        from fenchel.integrations.transformers import use_backend

        with pytest.raises(FenchelError, match=message), use_backend(self.model(), **options):
            pass

    def test_register_takes_options_of_names(self) -> None:
        from fenchel.integrations.transformers import register, use_backend

        model = self.model()
        with use_backend(model, Exact(tol=0.5)):
            rough = self.states(model)
        with use_backend(model, "exact"):
            exact = self.states(model)
        assert not torch.equal(rough, exact)
        try:
            register(Exact(tol=0.5))
            model.set_attn_implementation("fenchel_exact")
            torch.testing.assert_close(self.states(model), rough, rtol=0, atol=0)
        finally:
            register()
        torch.testing.assert_close(self.states(model), exact, rtol=0, atol=0)
        for wrong in (Exact, GradientAscent(), "exakt"):
            with pytest.raises(ProblemError, match="estimator is"):
                register(wrong)  # pyright: ignore[reportArgumentType]
