"""What heads infer from, as tensors with gradients, and what is put in their place."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fenchel
from fenchel import functional
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.transformers import register, use_backend
from fenchel.nn import ContinuousAttention, MixtureAttention, MultiheadAttention, TransportAttention
from fenchel.nn.evidence import AbstractEvidence, Content, General, TransformerXL
from fenchel.nn.preference import Causal, RelativePosition
from tests.swap.small_swaps import language_model
from tests.swap.test_ablations import text_inputs
from tests.tiny_models import eager_weights, tiny_inputs, tiny_model

IN_FLOAT64 = ("bert", "gpt2", "t5", "marian", "albert", "mobilebert", "distilbert")
IN_FLOAT32 = ("vit", "swin", "clip_text", "llama", "qwen3", "mistral", "modernbert")


KINDS = {
    **dict.fromkeys(("gpt2", "llama", "qwen3", "mistral", "clip_text"), ["decoder_self"] * 2),
    "t5": ["encoder_self"] * 2 + ["decoder_self", "cross"] * 2,
    "marian": ["encoder_self"] * 2 + ["decoder_self", "cross"] * 3,
}
"""Of families with more than encoders."""


def loss_of(output: Any) -> Tensor:
    states = output[0]
    weights = torch.linspace(-1, 1, states.shape[-1], dtype=states.dtype)
    return (states * weights).tanh().sum()


@pytest.mark.parametrize("padding", ["right", "left", "none"])
@pytest.mark.parametrize("family", [*IN_FLOAT64, *IN_FLOAT32])
def test_weights_are_those_of_the_models_own_attention(family: str, padding: str) -> None:
    dtype, tol = (torch.float64, 1e-10) if family in IN_FLOAT64 else (torch.float32, 2e-5)
    inputs = tiny_inputs(family, padding=padding, dtype=dtype)
    model = tiny_model(family, dtype=dtype)
    with torch.no_grad():
        own = model(**inputs)[0]
    # A capture is of the same numbers with gradients and without.
    with torch.set_grad_enabled(padding != "left"), fenchel.Capture(model) as heads:
        found = model(**inputs)[0]
    real = inputs.get("decoder_attention_mask", inputs.get("attention_mask", torch.ones(own.shape[:2]))) != 0
    torch.testing.assert_close(found[real], own[real], rtol=10 * tol, atol=10 * tol)
    kinds = KINDS.get(family, ["encoder_self"] * len(heads.sites))
    assert [site.kind for site in heads.sites] == kinds
    for site, (name, expected) in zip(heads.sites, eager_weights(family, inputs, dtype=dtype), strict=True):
        assert site.name == name
        for number in range(1, site.num_heads + 1):
            head = heads[site.kind, site.layer, number]
            sees = (head.log_preference > -torch.inf).any(-1).expand(head.weights.shape[:2])
            of_decoder = "decoder_attention_mask" in inputs and site.kind != "encoder_self"
            mask = inputs.get("decoder_attention_mask" if of_decoder else "attention_mask")
            counts = sees if mask is None or mask.shape != sees.shape else sees & (mask == 1)
            weights = head.weights[counts]
            torch.testing.assert_close(weights, expected[:, number - 1][counts], rtol=0, atol=tol)
            by_hand = (head.dual @ head.templates.mT + head.log_preference.to(dtype)).softmax(-1)
            torch.testing.assert_close(by_hand[counts], weights, rtol=0, atol=tol)
            output = (head.weights @ head.values)[counts]
            torch.testing.assert_close(output, head.output[counts], rtol=0, atol=tol)
            assert torch.equal(head.dual, head.alpha * head.evidence)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_gradients_reach_all_that_a_head_infers_from(family: str) -> None:
    inputs = tiny_inputs(family, dtype=torch.float64)
    model = tiny_model(family, dtype=torch.float64)
    with fenchel.Capture(model) as heads:
        loss = loss_of(model(**inputs))
    first, second = heads[2, 1], heads[2, 2]
    (slopes,) = torch.autograd.grad(loss, first.weights, retain_graph=True)
    by_scores = (first.weights * (slopes - (slopes * first.weights).sum(-1, keepdim=True))).detach()
    found = torch.autograd.grad(loss, [first.dual, first.evidence], retain_graph=True)
    for one in found:
        torch.testing.assert_close(one, by_scores @ first.templates, rtol=1e-9, atol=1e-12)
    (found_templates,) = torch.autograd.grad(loss, first.templates, retain_graph=True)
    expected = by_scores.mT @ first.dual
    if family == "llama":  # two heads share their keys
        assert second.templates is first.templates
        (slopes,) = torch.autograd.grad(loss, second.weights, retain_graph=True)
        other = second.weights * (slopes - (slopes * second.weights).sum(-1, keepdim=True))
        expected = expected + other.mT @ second.dual
    torch.testing.assert_close(found_templates, expected, rtol=1e-9, atol=1e-12)
    if family == "t5":
        (found_bias,) = torch.autograd.grad(loss, first.log_preference, retain_graph=True)
        expected = by_scores.sum(0, keepdim=True) if len(found_bias) == 1 else by_scores
        torch.testing.assert_close(found_bias, expected, rtol=1e-9, atol=1e-12)
    first.output.retain_grad()
    loss.backward()
    assert first.output.grad is not None


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_parameters_have_the_gradients_that_they_had(family: str) -> None:
    model, inputs = tiny_model(family, dtype=torch.float64), tiny_inputs(family, dtype=torch.float64)
    real = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    loss = lambda: (model(**inputs)[0].tanh() * real[..., None]).sum()  # noqa: E731
    loss().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    with fenchel.Capture(model):
        loss().backward()
    for name, parameter in model.named_parameters():
        if expected[name] is not None:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-11)


def test_dropout_acts_while_a_model_is_trained() -> None:
    model = tiny_model("bert", dtype=torch.float64, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    inputs = tiny_inputs("bert", padding="none", dtype=torch.float64)
    with fenchel.Capture(model.train()) as heads:
        loss = loss_of(model(**inputs))
    head = heads[1, 1]
    torch.testing.assert_close(head.weights.sum(-1), torch.ones(head.weights.shape[:2], dtype=torch.float64))
    assert not torch.allclose(head.output, head.weights @ head.values)
    assert torch.autograd.grad(loss, head.weights)[0].ne(0).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its name changes between releases
        model.gradient_checkpointing_enable()
    with pytest.raises(ModelError, match="gradient checkpointing"), fenchel.Capture(model):
        pass


def test_what_a_model_infers_by_is_captured() -> None:
    register(fenchel.Exact(tol=1e-10))
    try:
        model, inputs = tiny_model("bert", dtype=torch.float64), tiny_inputs("bert", dtype=torch.float64)
        first = model(**inputs)[0]
        model.set_attn_implementation("fenchel_exact")
        expected = model(**inputs)[0]
        with fenchel.Capture(model) as heads:
            found = model(**inputs)[0]
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
        assert not torch.allclose(found, first, atol=1e-4)
        with use_backend(model, "exact", tol=1e-10), fenchel.Capture(model) as others:
            again = model(**inputs)[0]
        torch.testing.assert_close(again, expected, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(others[1, 1].weights, heads[1, 1].weights, rtol=1e-8, atol=1e-8)
    finally:
        register()
    alpha = torch.tensor([[0.5], [1.0], [2.0], [1.5]], dtype=torch.float64)
    reliabilities = use_backend(model, "first_order", alpha=alpha, heads=[3, 4])
    with torch.no_grad(), reliabilities, fenchel.Capture(model) as heads:
        model(**inputs)
    ratios = [float(heads[1, head].dual.norm() / heads[1, head].evidence.norm()) for head in range(1, 5)]
    assert ratios == pytest.approx([1.0, 1.0, 2.0, 1.5])


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_replaced_heads_act_in_generation(family: str) -> None:
    model, inputs = language_model(family), text_inputs(family)
    inputs = {name: value[:1, :4] for name, value in inputs.items() if not name.startswith("decoder")}
    options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6, "pad_token_id": 0}
    calls = []

    def without(head: fenchel.CapturedHead) -> Tensor:
        calls.append(tuple(head.evidence.shape))
        return torch.full_like(head.output, 3.0)

    with fenchel.Capture(model) as heads:
        heads.replace(1, None, without)
        found = model.generate(**inputs, **options)
        assert heads[1, 2].output.eq(3).all()
    if family == "gpt2":
        assert {shape[1] for shape in calls} == {4, 1}
        assert heads[2, 1].templates.shape[1] == 9
        layer = model.transformer.h[0].attn.c_proj
    else:
        assert {site.kind for site in heads.sites} == {"encoder_self", "decoder_self", "cross"}
        assert len(calls) == 4
        layer = model.encoder.block[0].layer[0].SelfAttention.o
    layer.register_forward_pre_hook(lambda _module, given: (torch.full_like(given[0], 3.0),))
    assert torch.equal(model.generate(**inputs, **options), found)


def test_the_scale_belongs_to_the_templates_where_a_model_multiplies_queries_by_it() -> None:
    model, inputs, projected = tiny_model("opt"), tiny_inputs("opt"), dict[str, Tensor]()
    attention = model.decoder.layers[0].self_attn
    for name in ("q_proj", "k_proj"):
        keep = lambda _module, _inputs, output, name=name: projected.update({name: output[..., 6:12]})  # noqa: E731
        getattr(attention, name).register_forward_hook(keep)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        with fenchel.Capture(model) as heads:
            found = model(**inputs).last_hidden_state
        certificates: list[functional.AttentionCertificate] = []
        with use_backend(model, "first_order", certificate=lambda _, each: certificates.append(each)):
            model(**inputs)
    torch.testing.assert_close(found, expected)
    head = heads[1, 2]
    torch.testing.assert_close(head.templates, projected["k_proj"] * 6**-0.5)
    torch.testing.assert_close(head.evidence, projected["q_proj"])
    q, k, log_u = (x.unsqueeze(1) for x in (head.evidence, head.templates, head.log_preference))
    gap = functional.infer(q, k, log_preference=log_u, scale=1.0).certificate.gap
    torch.testing.assert_close(certificates[0].gap[:, 1:2], gap)


def test_layers_are_meant_by_kind_number_or_name() -> None:
    model, inputs = tiny_model("marian"), tiny_inputs("marian")
    with fenchel.Capture(model, kind="cross", layers=[1, 3, "decoder.layers.1.encoder_attn"]) as heads:
        model(**inputs)
        assert heads[3, 1] is heads["cross", 3, 1] is heads["decoder.layers.2.encoder_attn", 1]
        assert heads["encoder_self", 1, 2].evidence.shape[1] == inputs["input_ids"].shape[1]
        with pytest.raises(CaptureError, match="layer 2 has not attended, or is not among layers"):
            heads["encoder_self", 2, 1]
    layers = {kind: {head.site.layer for head in heads if head.site.kind == kind} for kind in KINDS["marian"]}
    assert layers == {"encoder_self": {1}, "decoder_self": {1, 3}, "cross": {1, 2, 3}}
    assert repr(heads[1, 4]) == "CapturedHead(cross, layer 1, head 4: 3 x 7 queries, 9 templates)"


def test_it_is_the_last_call_that_is_kept() -> None:
    model = tiny_model("albert")
    with fenchel.Capture(model) as heads:
        for rows in (1, 2):
            model(**tiny_inputs("albert", batch=rows))
            assert [len(head.evidence) for head in heads] == [rows] * 12
    assert [site.layer for site in heads.sites] == [1, 2, 3]


def test_heads_that_do_not_exist_are_named() -> None:
    model = tiny_model("bert")
    place: Any
    with fenchel.Capture(model) as heads:
        with pytest.raises(CaptureError, match="layer 1 has not attended"):
            heads[1, 1]
        model(**tiny_inputs("bert"))
        for place, message in (
            ((3, 1), "there is no layer 3; this BertModel has encoder self-attention 1 to 2"),
            (("cross", 1, 1), "no layer 1 of kind cross"),
            ((1, 5), "no head 5 in encoder.layer.0.attention.self, which has heads 1 to 4"),
            ((0, 1), r"head index is \(0, 1\); expected \(layer, head\)"),
            (1, "head index is 1; expected"),
            (("self", 1, 1), "a kind of encoder_self, decoder_self, cross"),
        ):
            with pytest.raises(InputError, match=message):
                heads[place]


def own(head: fenchel.CapturedHead) -> Tensor:
    return head.output


SHORT = r"head 2 of encoder.layer.1.* has shape \(3, 8, 6\); expected .* = \(3, 9, 6\)"


@pytest.mark.parametrize(
    ("place", "function", "error", "message"),
    [
        ((2, 2), lambda head: head.output[:, 1:], InputError, SHORT),
        ((2, 2), lambda head: None, InputError, "is None; expected a tensor"),
        ((1, 1), 3, InputError, "function is 3; expected a function of a captured head"),
        ((3, 1), own, CaptureError, "head 1 of layer 3 was never called; .* encoder self-attention 1 to 2"),
        ((1, 5), own, CaptureError, "head 5 of layer 1 was never called; .* with up to 4 heads"),
        (("cross", 1, None), own, CaptureError, "head any of cross layer 1 was never called"),
    ],
)
def test_what_cannot_replace_is_refused_and_the_model_restored(
    place: Any, function: Any, error: Any, message: str
) -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    expected = model(**inputs)[0]
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    before = (model.config._attn_implementation, hooks())
    *kind, layer, head = place
    with pytest.raises(error, match=message), fenchel.Capture(model) as heads:  # noqa: PT012
        heads.replace(layer, head, function, kind=next(iter(kind), None))
        model(**inputs)
    assert before == (model.config._attn_implementation, hooks())
    assert torch.equal(model(**inputs)[0], expected)


def test_an_error_of_a_function_comes_through_and_the_capture_goes_on() -> None:
    """What replaces heads: test_ablations.py of tests/swap, which compares it with hooks."""
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    expected = model(**inputs)[0]
    with fenchel.Capture(model) as heads:
        heads.replace(1, 1, lambda head: {}["mine"])
        with pytest.raises(KeyError, match="mine"):
            model(**inputs)
        heads.replace(1, 1, None)
        torch.testing.assert_close(model(**inputs)[0], expected)
    assert len([*heads]) == 8


def test_a_capture_that_is_not_used_as_it_was_made_is_refused() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    with pytest.raises(CaptureError, match="was never called"), fenchel.Capture(model) as heads:  # noqa: PT012
        model(**inputs)
        heads.replace(1, 1, own)
    with pytest.raises(ModelError, match="no attention of BertModel was reached"), fenchel.Capture(model):
        pass
    with pytest.raises(ModelError, match="did not attend"), fenchel.Capture(MultiheadAttention(8, 2)):
        pass
    wrong: Any
    for wrong in (1, "1", [0], []):
        with pytest.raises(InputError, match="expected whole numbers from 1 or names of modules"):
            fenchel.Capture(model, layers=wrong)
    unknown = fenchel.Capture(model, layers=["encoder"])
    with pytest.raises(InputError, match=r"layers \['encoder'\] do not exist"), unknown:
        model(**inputs)
    with fenchel.Capture(model) as heads:
        with pytest.raises(CaptureError, match="without consume"):
            heads.run(inputs)
        model(**inputs)
    with fenchel.Capture(model, consume=print) as capture, pytest.raises(CaptureError, match="consume"):
        capture.replace(1, 1, own)


class Holds(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


class Doubled(AbstractEvidence):
    """An evidence of one's own."""

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        return 2 * query, key, 0.25


LAYERS: list[dict[str, Any]] = [
    {},
    {"alpha": 3.0, "learn_alpha": True},
    {"alpha": 0.5, "estimator": "exact", "tol": 1e-10, "bias": False},
    {"closeness": fenchel.Tsallis(1.5)},
    {"preference": Causal()},
    {"preference": RelativePosition(2, 4)},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"normalize_templates": True, "learn_radius": True, "radius": 1.5},
    {"evidence": TransformerXL(2, 4, width=6)},
    {"evidence": General(2, 4)},
    {"evidence": Content(2)},
    {"evidence": Doubled()},
    {"kind": MixtureAttention, "answer": "memories"},
    {"kind": MixtureAttention},
]


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_layers_of_our_own_are_captured(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    kind = options.get("kind", MultiheadAttention)
    given = {name: copy.deepcopy(option) for name, option in options.items() if name != "kind"}
    model = Holds(kind(8, 2, batch_first=True, **given)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = model(x)
    _, weights = model.layer(x, x, x, average_attn_weights=False)
    with fenchel.Capture(model) as heads:
        found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    for number in (1, 2):
        head = heads[1, number]
        torch.testing.assert_close(head.weights, weights[:, number - 1], rtol=1e-8, atol=1e-9)
        alpha = getattr(model.layer, "alpha", 1.0)
        own = alpha[number - 1] if isinstance(alpha, Tensor) and alpha.dim() else alpha
        torch.testing.assert_close(head.dual, own * head.evidence)
        (slope,) = torch.autograd.grad(found.sum(), head.output, retain_graph=True)
        assert slope.abs().max() > 0
    with fenchel.Capture(model) as heads, torch.no_grad():
        heads.replace(1, 2, lambda head: 2 * head.output)
        doubled = model(x)
    output = torch.stack([heads[1, 1].output, heads[1, 2].output], 2).flatten(2)
    torch.testing.assert_close(model.layer.out_proj(output), doubled, rtol=1e-8, atol=1e-9)
    assert "infer" not in model.layer.__dict__
    assert torch.equal(model(x), expected)


def test_layers_whose_heads_infer_together_are_refused() -> None:
    for layer in (TransportAttention(8, 2), ContinuousAttention(8, 2)):
        with pytest.raises(ModelError, match="heads share one inference"):
            fenchel.Capture(Holds(layer))
