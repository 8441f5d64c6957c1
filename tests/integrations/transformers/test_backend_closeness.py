"""Hugging Face models whose attention is under another closeness: by name, by context, trained, compiled."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import KL, Exact, GradientAscent, OptimalTransport, ProblemError, Tsallis
from fenchel import functional as F
from fenchel.errors import FenchelError
from fenchel.integrations.transformers import register, use_backend
from fenchel.integrations.transformers.backend import AttentionProblem, Inference, Setting, infer
from tests.nn.test_conformance import SAME
from tests.tiny_models import tiny_inputs, tiny_model
from tests.wrong_calls.layers import ESTIMATORS
from tests.wrong_calls.values import Together

NAMES = {"fenchel_sparsemax": Tsallis(2), "fenchel_entmax15": Tsallis(1.5)}


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["bert", "t5", "llama"])
def test_a_name_is_a_context(family: str, name: str) -> None:
    inputs = tiny_inputs(family, padding="left") if family == "bert" else tiny_inputs(family)
    named = tiny_model(family, attn_implementation=name)(**inputs).last_hidden_state
    model = tiny_model(family)
    before = model(**inputs).last_hidden_state
    with use_backend(model, "first_order", closeness=NAMES[name]):
        found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found, named, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(**inputs).last_hidden_state, before)
    assert float((found - before).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_masked_keys_keep_weight_zero_and_no_hidden_state_depends_on_padding(family: str) -> None:
    inputs = tiny_inputs(family, padding="left") if family == "bert" else tiny_inputs(family)
    model = tiny_model(family, attn_implementation="fenchel_sparsemax")
    output = model(**inputs, output_attentions=True)
    real = inputs["attention_mask"] == 1
    for weights in output.attentions:
        assert bool((weights.transpose(1, 3)[~real] == 0).all())
        rows = weights.sum(-1).transpose(1, 2)[real]
        torch.testing.assert_close(rows, torch.ones_like(rows))
        if family == "llama":
            assert bool((weights.triu(1) == 0).all())
    changed = {**inputs, "input_ids": torch.where(real, inputs["input_ids"], 7)}
    again = model(**changed).last_hidden_state
    torch.testing.assert_close(again[real], output.last_hidden_state[real])


CLOSENESSES = {"KL": None, "orders of heads": Tsallis(torch.tensor([[1.1], [1.4], [1.7], [2.0]]).double())}
ALPHAS = {
    "one": 0.8,
    "of heads": torch.tensor([[0.5], [0.6], [0.7], [0.8]]).double(),
    "of queries": torch.linspace(0.5, 1, 5).double(),
}


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("alpha", ALPHAS.values(), ids=ALPHAS)
@pytest.mark.parametrize("near", CLOSENESSES.values(), ids=CLOSENESSES)
@pytest.mark.parametrize("estimator", ["second_order", "exact"])
def test_chosen_heads_infer_and_the_others_stay_first_order(
    estimator: str, near: Any, alpha: Any, key_heads: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, h, 5, 4, generator=generator, dtype=torch.float64) for h in (4, key_heads, key_heads)
    )
    log_u = torch.randn(2, 4, 1, 5, generator=generator, dtype=torch.float64)
    options: dict[str, Any] = {"log_preference": log_u, "scale": 0.5, "enable_gqa": True}
    solver = Exact(tol=1e-12) if estimator == "exact" else estimator
    inferring = {**options, "alpha": alpha, "closeness": near, "estimator": solver}
    whole, bounds = F.attention_with_certificate(query, key, value, **inferring)
    own, own_bounds = F.attention_with_certificate(query, key, value, **options)
    problem = AttentionProblem(query, key, value, log_u, 0.5, 0.0)
    how = Inference(solver, alpha, closeness=near)
    for heads in (None, (2, 4), (4, 1, 3)):
        found = infer(problem, Setting(how, heads=heads), weights=True, certificate=True)
        chosen = torch.tensor([heads is None or head in heads for head in range(1, 5)])[:, None]
        expected = torch.where(chosen[..., None], whole, own)
        torch.testing.assert_close(found.output, expected, rtol=0, atol=1e-9)
        assert found.weights is not None
        assert found.certificate is not None
        read = found.weights @ value.repeat_interleave(4 // key_heads, 1)
        torch.testing.assert_close(read, expected, rtol=0, atol=1e-9)
        gaps = torch.where(chosen, bounds.gap, own_bounds.gap)
        torch.testing.assert_close(found.certificate.gap, gaps, rtol=1e-6, atol=1e-12)
    plain = infer(problem, Setting(how, heads=(1,)))
    assert plain.weights is None
    assert plain.certificate is None


def test_a_model_of_sparse_attention_keeps_it_where_nothing_else_is_asked() -> None:
    inputs = tiny_inputs("bert")
    model = tiny_model("bert", attn_implementation="fenchel_entmax15")
    own = model(**inputs).last_hidden_state
    with use_backend(model, "first_order"):
        torch.testing.assert_close(model(**inputs).last_hidden_state, own)
    with use_backend(model, "exact", layers=[2], heads=[1]):
        one = model(**inputs, output_attentions=True).attentions
        with use_backend(model, "first_order", layers=[1]):
            torch.testing.assert_close(model(**inputs).last_hidden_state, own)
    with use_backend(model, "exact", closeness=Tsallis(1.5), layers=[2]):
        every = model(**inputs, output_attentions=True).attentions
    torch.testing.assert_close(one[0], every[0])
    torch.testing.assert_close(one[1][:, :1], every[1][:, :1])
    with use_backend(model, "first_order", closeness=KL()):
        softmax = model(**inputs).last_hidden_state
    model.set_attn_implementation("eager")
    torch.testing.assert_close(softmax, model(**inputs).last_hidden_state)


def test_a_learned_order_per_head_and_a_certificate() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    raw = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
    seen: dict[str, Tensor] = {}
    near = Tsallis(1 + raw.sigmoid())
    told: Any = lambda site, certificate: seen.update({site: certificate.gap})  # noqa: E731
    with use_backend(model, "first_order", closeness=near, certificate=told):
        model(**inputs).last_hidden_state.sin().sum().backward()
    assert raw.grad is not None
    assert bool((raw.grad.abs() > 0).all())
    assert len(seen) == 2
    assert all(bool((gap >= 0).all()) for gap in seen.values())


def test_what_is_no_closeness_of_a_backend_is_named() -> None:
    model = tiny_model("bert")
    for near, message in (
        ("entmax17", r"closeness is 'entmax17'; expected one such as fenchel.Tsallis"),
        (OptimalTransport("dot", 1.0, warn=False), r"closeness is an OptimalTransport.*transport_attention"),
    ):
        context: Any = use_backend(model, "first_order", closeness=near)  # type: ignore[arg-type]
        with pytest.raises(ProblemError, match=message), context:
            pass


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
        for _ in range(2):
            torch.testing.assert_close(states(model), rough, rtol=0, atol=0)
            register()  # changes no options
    finally:
        register(Exact())
    torch.testing.assert_close(states(model), exact, rtol=0, atol=0)
    for wrong in (Exact, GradientAscent(), "exakt"):
        with pytest.raises(ProblemError, match="estimator is"):
            register(wrong)  # pyright: ignore[reportArgumentType]
