"""The backend is attention of `fenchel.functional` in the layout of models, under any closeness."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from fenchel import KL, Exact, GradientAscent, OptimalTransport, ProblemError, Tsallis
from fenchel import functional as F
from fenchel.errors import CaptureError, FenchelError, ModelError
from fenchel.integrations.backend import Inference, ModelCall, Setting, attend
from fenchel.integrations.transformers import register, use_backend
from fenchel.nn.inference import Problem
from tests.nn.test_conformance import SAME
from tests.normal import drawn
from tests.tiny_models import tiny_inputs, tiny_model
from tests.wrong_calls.layers import ESTIMATORS
from tests.wrong_calls.values import Together, made

NAMES = {estimator: f"fenchel_{estimator}" for estimator in ("first_order", "second_order", "exact")}


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


class Attention(nn.Module):
    """A module as an attention function sees it."""

    is_causal = False


def problem(heads: int = 2, key_heads: int = 2, tokens: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    key, value = drawn(2, key_heads, tokens, 4, seed=1), drawn(2, key_heads, tokens, 3, seed=2)
    return drawn(2, heads, tokens, 4), key, value


def test_is_causal_of_the_call_comes_before_that_of_the_module():
    query, key, value = problem()
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    found, _ = attend(Attention(), query, key, value, None, setting=Setting(), is_causal=True)
    expected = F.reference.attention(query, key, value, log_preference=causal)
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=0, atol=1e-12)
    free, _ = attend(Attention(), query, key, value, None, setting=Setting())
    assert (free - found).abs().max() > 1e-3


def test_dropout_acts_in_training_alone():
    given, module = problem(), Attention()
    expected, _ = attend(module.eval(), *given, None, setting=Setting())
    ignored, _ = attend(module, *given, None, setting=Setting(), dropout=0.5)
    assert torch.equal(ignored, expected)
    dropped, _ = attend(module.train(), *given, None, setting=Setting(), dropout=0.5)
    assert (dropped - expected).abs().max() > 0.1


def test_capped_scores_are_the_familys_own_at_first_order_and_refused_elsewhere():
    inputs = tiny_inputs("gemma2", padding="none")
    model = tiny_model("gemma2", attn_implementation="eager", attn_logit_softcapping=0.5)
    expected = model(**inputs).last_hidden_state
    model.set_attn_implementation(NAMES["first_order"])
    torch.testing.assert_close(model(**inputs).last_hidden_state, expected, rtol=0, atol=1e-6)
    for estimator in ("second_order", "exact"):
        model.set_attn_implementation(NAMES[estimator])
        with pytest.raises(ModelError, match=r"passes 'softcap'.*only first order"):
            model(**inputs)
    with use_backend(model, "first_order", alpha=0.5), pytest.raises(ModelError, match="passes 'softcap'"):
        model(**inputs)


def test_an_attention_sink_is_a_template_with_value_zero_whose_log_preference_is_its_logit():
    query, key, value = problem(4, 2)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    asked = {"s_aux": sinks, "output_attentions": True, "scaling": 0.5}
    output, weights = attend(Attention(), query, key, value, None, setting=Setting(), **asked)
    scores = 0.5 * query @ key.repeat_interleave(2, 1).mT
    with_sink = torch.cat((scores, sinks.view(1, 4, 1, 1).expand(2, 4, 5, 1)), -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(weights, with_sink, rtol=0, atol=1e-12)
    expected = with_sink @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(output.transpose(1, 2), expected, rtol=0, atol=1e-12)
    (found,) = torch.autograd.grad(output.sum(), sinks)
    (gradient,) = torch.autograd.grad(expected.sum(), sinks)
    torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)
    with pytest.raises(CaptureError, match=r"s_aux of shape \(3,\); expected one logit per head, \(4,\)"):
        attend(Attention(), query, key, value, None, setting=Setting(), s_aux=torch.ones(3))


@pytest.mark.parametrize("heads", [None, [2]])
@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_attentions_that_are_returned_lie_on_the_path_to_the_output(estimator, heads):
    model, inputs = tiny_model("llama"), tiny_inputs("llama")
    with use_backend(model, estimator, heads=heads):
        output = model(**inputs, output_attentions=True)
        for weights in output.attentions:
            weights.retain_grad()
        output.last_hidden_state.square().sum().backward()
        plain = model(**inputs).last_hidden_state
    assert all(float(weights.grad.abs().max()) > 0 for weights in output.attentions)
    torch.testing.assert_close(output.last_hidden_state, plain, rtol=0, atol=1e-7)


def test_a_family_that_changes_its_scores_unseen_is_noticed_at_its_first_call(monkeypatch):
    from transformers.models.bert import modeling_bert

    eager = modeling_bert.eager_attention_forward

    def sharper(module, query, key, value, mask, scaling, **kwargs):
        return eager(module, query, key, value, mask, scaling=2 * scaling, **kwargs)

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", sharper)
    model = tiny_model("bert", attn_implementation=NAMES["exact"])
    with pytest.raises(ModelError, match=r"BertSelfAttention.*differs by .*eager_attention_forward"):
        model(**tiny_inputs("bert"))


def test_query_heads_that_key_heads_do_not_divide_are_an_error():
    with pytest.raises(CaptureError, match="3 query heads, not a multiple of 2 key heads"):
        attend(Attention(), *problem(3, 2), None, setting=Setting())


def test_weights_are_returned_when_the_configuration_asks():
    query, key, value = problem()
    module: Any = Attention()
    module.config = type("Configuration", (), {"output_attentions": True})()
    _, weights = attend(module, query, key, value, None, setting=Setting())
    expected = F.reference.inferred_weights(query, key, scale=0.5)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("estimator", NAMES)
def test_gradient_checkpointing_changes_no_gradient(estimator, reentrant):
    model = tiny_model("llama", attn_implementation=NAMES[estimator])
    inputs = tiny_inputs("llama")
    model.train()  # models checkpoint in training alone; dropout is 0 in this configuration

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model(**inputs).last_hidden_state.sin().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    found = gradients()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


NAMED: dict[str, dict[str, Any]] = {
    **{name: {"estimator": estimator} for estimator, name in NAMES.items()},
    "fenchel_sparsemax": {"estimator": "first_order", "closeness": Tsallis(2)},
    "fenchel_entmax15": {"estimator": "first_order", "closeness": Tsallis(1.5)},
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("family", ["bert", "t5", "llama"])
def test_a_name_is_a_context(family: str, name: str) -> None:
    inputs = tiny_inputs(family, padding="left") if family == "bert" else tiny_inputs(family)
    named = tiny_model(family, attn_implementation=name)(**inputs).last_hidden_state
    model = tiny_model(family)
    before = model(**inputs).last_hidden_state
    with use_backend(model, **NAMED[name]):
        found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found, named, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(**inputs).last_hidden_state, before)
    assert (float((found - before).detach().abs().max()) > 1e-3) == (name != NAMES["first_order"])


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
    query, key, value = problem(4, key_heads)
    log_u = drawn(2, 4, 1, 5, seed=3)
    options: dict[str, Any] = {"log_preference": log_u, "scale": 0.5, "enable_gqa": True}
    solver = Exact(tol=1e-12) if estimator == "exact" else estimator
    inferring = {**options, "alpha": alpha, "closeness": near, "estimator": solver}
    whole, bounds = F.attention_with_certificate(query, key, value, **inferring)
    own, own_bounds = F.attention_with_certificate(query, key, value, **options)
    call = ModelCall(Attention(), Problem(query, key, value, 1.0, 0.5), log_u, 0.0)
    how = Inference(solver, alpha, closeness=near)
    for heads in (None, (2, 4), (4, 1, 3)):
        found = replace(call, setting=Setting(how, heads=heads)).infer(weights=True, certificate=True)
        chosen = torch.tensor([heads is None or head in heads for head in range(1, 5)])[:, None]
        expected = torch.where(chosen[..., None], whole, own)
        torch.testing.assert_close(found.output, expected, rtol=0, atol=1e-9)
        assert found.weights is not None
        assert found.certificate is not None
        read = found.weights @ value.repeat_interleave(4 // key_heads, 1)
        torch.testing.assert_close(read, expected, rtol=0, atol=1e-9)
        gaps = torch.where(chosen, bounds.gap, own_bounds.gap)
        torch.testing.assert_close(found.certificate.gap, gaps, rtol=1e-6, atol=1e-12)


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


def states(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(**tiny_inputs("bert", padding="none")).last_hidden_state


def test_use_backend_takes_objects_and_refuses_what_it_cannot_use() -> None:
    model = tiny_model("bert")
    for given, named in SAME:
        with use_backend(model, **named, alpha=0.8):
            expected = states(model)
        with use_backend(model, given, alpha=0.8):
            torch.testing.assert_close(states(model), expected, rtol=0, atol=0)
    nearness = made(name="entmax17", transport=OptimalTransport("dot", 1.0, warn=False))
    for argument, kinds in {**ESTIMATORS, "closeness": nearness}.items():
        for kind, make in kinds.items():
            value = make()
            if kind == "None_" and argument != "estimator":
                continue
            options = {"estimator": "exact", **(value if isinstance(value, Together) else {argument: value})}
            with pytest.raises(FenchelError, match=argument), use_backend(model, **options):
                states(model)


def test_register_takes_options_of_names_and_loading_keeps_them(tmp_path) -> None:
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
        model.save_pretrained(tmp_path)
        named: Any = {"attn_implementation": "fenchel_exact", "dtype": torch.float64}
        torch.testing.assert_close(states(AutoModel.from_pretrained(tmp_path, **named)), rough)
    finally:
        register(Exact())
    torch.testing.assert_close(states(model), exact, rtol=0, atol=0)
    for wrong in (Exact, GradientAscent(), "exakt"):
        with pytest.raises(ProblemError, match="estimator is"):
            register(wrong)  # pyright: ignore[reportArgumentType]
