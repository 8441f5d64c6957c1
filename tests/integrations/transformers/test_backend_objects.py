"""Estimators as objects in models of transformers: the same as their names, and refused as in layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import Exact, GradientAscent
from fenchel.errors import FenchelError, ProblemError
from fenchel.integrations.transformers import register, use_backend
from tests.nn.test_conformance import SAME
from tests.tiny_models import tiny_inputs, tiny_model
from tests.wrong_calls.layers import ESTIMATORS
from tests.wrong_calls.values import Together


def states(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(**tiny_inputs("bert", padding="none")).last_hidden_state


@pytest.mark.parametrize(("given", "named"), SAME)
def test_use_backend_takes_objects(given: Any, named: dict[str, Any]) -> None:
    model = tiny_model("bert")
    with use_backend(model, **named, alpha=0.8):
        expected = states(model)
    with use_backend(model, given, alpha=0.8):
        torch.testing.assert_close(states(model), expected, rtol=0, atol=0)


@pytest.mark.parametrize("argument", ESTIMATORS)
def test_use_backend_refuses_what_it_cannot_use(argument: str) -> None:
    model = tiny_model("bert")
    for kind, make in ESTIMATORS[argument].items():
        value = make()
        if kind == "None_" and argument != "estimator":
            continue
        options = {"estimator": "exact", **(value if isinstance(value, Together) else {argument: value})}
        with pytest.raises(FenchelError, match=argument), use_backend(model, **options):
            states(model)


def test_register_takes_options_of_names() -> None:
    model = tiny_model("bert")
    with use_backend(model, Exact(tol=0.5)):
        rough = states(model)
    with use_backend(model, "exact"):
        exact = states(model)
    assert not torch.equal(rough, exact)
    try:
        register(Exact(tol=0.5))
        model.set_attn_implementation("fenchel_exact")
        torch.testing.assert_close(states(model), rough, rtol=0, atol=0)
    finally:
        register()
    torch.testing.assert_close(states(model), exact, rtol=0, atol=0)
    for wrong in (Exact, GradientAscent(), "exakt"):
        with pytest.raises(ProblemError, match="estimator is"):
            register(wrong)  # pyright: ignore[reportArgumentType]
