"""What is captured is what the model computes, in every family, kind and space; the rest is refused."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.capture import AttentionCall, Capture
from tests.tiny_models import TOKENS, eager_weights, tiny_inputs, tiny_model

LINEAR_KEYS = (
    "bert",
    "distilbert",
    "t5",
    "vit",
    "gpt2",
    "marian",
    "albert",
    "swin",
    "clip_text",
    "mobilebert",
)
OTHER_KEYS = ("llama", "qwen3", "modernbert", "mistral")
FLOAT32_SOFTMAX = ("vit", "swin", "clip_text", *OTHER_KEYS)


def captured(
    family: str, inputs: dict[str, Any], *, space: Any = "key", **options: Any
) -> list[AttentionCall]:
    """The calls of a second forward: the first finds the key maps, the second uses what it found."""
    calls: list[AttentionCall] = []
    with Capture(tiny_model(family, **options), space=space, consume=calls.append) as capture:
        capture.run(inputs)
        half = len(calls)
        capture.run(inputs)
    for first, second in zip(calls[:half], calls[half:], strict=True):
        assert torch.equal(first.query, second.query)
        assert (first.inputs is None) == (second.inputs is None)
        if first.inputs is not None and second.inputs is not None:
            assert torch.equal(first.inputs, second.inputs)
    return calls[half:]


def per_query_head(heads: Tensor, call: AttentionCall) -> Tensor:
    return heads.repeat_interleave(call.query.shape[1] // heads.shape[1], 1)


def scores_in_key_space(call: AttentionCall) -> Tensor:
    return call.scaling * call.query @ per_query_head(call.key, call).mT


def scores_in_input_space(call: AttentionCall) -> Tensor:
    """⟨x_i·scaling, Kᵀq⟩, with the bias of the key map left out: it is the same for all i."""
    assert call.inputs is not None
    assert call.key_weight is not None
    weight = per_query_head(call.key_weight[None], call)
    return (call.query @ weight) @ (call.inputs[:, None] * call.scaling).mT


def assert_weights(call: AttentionCall, scores: Tensor, expected: Tensor, tol: float) -> None:
    if call.log_preference is not None:
        scores = scores + call.log_preference
    weights = scores.softmax(-1)
    rows = call.counted[:, None, :, None].expand_as(weights)
    assert rows.any()
    torch.testing.assert_close(weights[rows], expected.to(weights)[rows], rtol=0, atol=tol)


def exactness(family: str) -> tuple[torch.dtype, float]:
    """Where a family takes its softmax in float32, its eager attention makes NaN of float64's finfo.min."""
    return (torch.float32, 2e-5) if family in FLOAT32_SOFTMAX else (torch.float64, 1e-10)


@pytest.mark.parametrize("padding", ["right", "left", "none"])
@pytest.mark.parametrize("family", [*LINEAR_KEYS, *OTHER_KEYS])
def test_key_space_gives_the_models_weights(family: str, padding: str) -> None:
    dtype, tol = exactness(family)
    inputs = tiny_inputs(family, padding=padding, dtype=dtype)
    expected = eager_weights(family, inputs, dtype=dtype)
    calls = captured(family, inputs, dtype=dtype)
    assert [call.site.name for call in calls] == [name for name, _ in expected]
    for call, (_, weights) in zip(calls, expected, strict=True):
        assert_weights(call, scores_in_key_space(call), weights, tol)


@pytest.mark.parametrize("padding", ["right", "left", "none"])
@pytest.mark.parametrize("family", LINEAR_KEYS)
def test_input_space_gives_the_models_weights(family: str, padding: str) -> None:
    dtype, tol = exactness(family)
    inputs = tiny_inputs(family, padding=padding, dtype=dtype)
    expected = eager_weights(family, inputs, dtype=dtype)
    calls = captured(family, inputs, space="input", dtype=dtype)
    for call, (_, weights) in zip(calls, expected, strict=True):
        assert_weights(call, scores_in_input_space(call), weights, tol)
        assert call.inputs is not None
        assert call.key_weight is not None
        linear = torch.einsum("bnw,hdw->bhnd", call.inputs, call.key_weight)
        if call.key_bias is not None:
            linear = linear + call.key_bias[:, None, :]
        torch.testing.assert_close(linear, call.key, rtol=0, atol=tol)


def test_the_checker_of_weights_sees_a_wrong_scale() -> None:
    inputs = tiny_inputs("bert")
    (_, weights), *_ = eager_weights("bert", inputs)
    call = captured("bert", inputs)[0]
    with pytest.raises(AssertionError, match="not close"):
        assert_weights(call, 1.01 * scores_in_key_space(call), weights, 1e-5)
    unmasked = replace(call, preference=None)
    with pytest.raises(AssertionError, match="not close"):
        assert_weights(unmasked, scores_in_key_space(call), weights, 1e-5)


@pytest.mark.parametrize("family", [*LINEAR_KEYS, *OTHER_KEYS])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_the_model_computes_what_it_did_before(family: str, dtype: torch.dtype, tol: float) -> None:
    inputs = tiny_inputs(family, dtype=dtype)
    model = tiny_model(family, dtype=dtype)
    results: list[Tensor] = []
    model.register_forward_hook(lambda _module, _args, output: results.append(output.last_hidden_state))
    with torch.no_grad():
        model(**inputs)
    with Capture(model, space="key", consume=lambda call: None) as capture:
        capture.run(inputs)
    before, during = results
    real = inputs.get("decoder_attention_mask", inputs.get("attention_mask", torch.ones(before.shape[:2])))
    # left out: rows that are padding, where families differ even between their own attention functions
    torch.testing.assert_close(during[real != 0], before[real != 0], rtol=tol, atol=tol)
    assert during.isfinite().all()


@pytest.mark.parametrize("family", ["gpt2", "t5", "llama"])
def test_rows_that_see_nothing_are_finite_and_not_counted(family: str) -> None:
    inputs = tiny_inputs(family, padding="left")
    for call in captured(family, inputs):
        assert call.query.isfinite().all()
        assert call.log_preference is not None
        sees = (call.log_preference > -torch.inf).any(-1).any(1).expand_as(call.counted)
        assert not (call.counted & ~sees).any()
        of_decoder = "decoder_attention_mask" in inputs and call.site.kind != "encoder_self"
        mask = inputs["decoder_attention_mask" if of_decoder else "attention_mask"]
        assert torch.equal(call.counted, mask == 1)
        if call.site.kind == "decoder_self":
            assert not sees.all()


def shapes(family: str, *, padding: str, mask: bool = True) -> dict[str, tuple[int, ...] | None]:
    inputs = tiny_inputs(family, padding=padding)
    if not mask:
        inputs = {name: value for name, value in inputs.items() if "mask" not in name}
    return {
        call.site.kind: None if call.log_preference is None else tuple(call.log_preference.shape)
        for call in captured(family, inputs)
    }


def test_the_preference_is_no_larger_than_it_varies() -> None:
    n, m = TOKENS, TOKENS - 2
    assert shapes("bert", padding="right") == {"encoder_self": (3, 1, 1, n)}
    assert shapes("bert", padding="none") == {"encoder_self": None}
    assert shapes("vit", padding="none") == {"encoder_self": None}
    assert shapes("gpt2", padding="right") == {"decoder_self": (3, 1, n, n)}
    assert shapes("gpt2", padding="none") == {"decoder_self": (1, 1, n, n)}
    encoder_decoder = shapes("t5", padding="none")
    assert encoder_decoder == {"encoder_self": (1, 4, n, n), "decoder_self": (1, 4, m, m), "cross": None}
    assert shapes("t5", padding="right")["cross"] == (3, 1, 1, n)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize(
    ("family", "kind"), [(f, "decoder_self") for f in ("gpt2", "llama", "t5", "marian", "clip_text")]
)
def test_causality_is_never_lost(family: str, kind: str, mask: bool) -> None:
    inputs = tiny_inputs(family, padding="none")
    if not mask:
        inputs = {name: value for name, value in inputs.items() if "mask" not in name}
    calls = [call for call in captured(family, inputs) if call.site.kind == kind]
    assert calls
    for call in calls:
        assert call.log_preference is not None
        allowed = call.log_preference > -torch.inf
        assert torch.equal(allowed, torch.ones_like(allowed).tril())


def test_a_sliding_window_is_in_the_preference() -> None:
    for call in captured("mistral", tiny_inputs("mistral", padding="none")):
        assert call.log_preference is not None
        distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        assert torch.equal(call.log_preference[0, 0] > -torch.inf, (distance >= 0) & (distance < 3))


def test_local_and_global_layers_have_their_own_preference() -> None:
    first, second = captured("modernbert", tiny_inputs("modernbert", padding="none"))
    assert first.log_preference is None
    assert second.log_preference is not None
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    assert torch.equal(second.log_preference[0, 0] > -torch.inf, distance.abs() <= 2)


def test_scaling_is_that_of_the_call() -> None:
    assert {call.scaling for call in captured("t5", tiny_inputs("t5"))} == {1.0}
    assert {call.scaling for call in captured("bert", tiny_inputs("bert"))} == {6**-0.5}
    gemma = captured("gemma2", tiny_inputs("gemma2"), attn_logit_softcapping=None)
    assert {call.scaling for call in gemma} == {16**-0.5}  # its head width is 8


def test_position_biases_are_the_preference() -> None:
    model = tiny_model("t5")
    inputs = tiny_inputs("t5", padding="none")
    attention = model.encoder.block[0].layer[0].SelfAttention
    expected = attention.compute_bias(TOKENS, TOKENS).detach()
    for call in captured("t5", inputs):
        if call.site.kind == "encoder_self":
            assert call.log_preference is not None
            assert torch.equal(call.log_preference, expected)


def test_swins_shift_mask_stays_a_weight() -> None:
    calls = captured("swin", tiny_inputs("swin", batch=2))
    shifted = calls[1].log_preference
    assert shifted is not None
    assert tuple(shifted.shape) == (8, 2, 16, 16)
    assert shifted.isfinite().all()
    assert shifted.min() < -90
    assert calls[0].log_preference is not None
    assert tuple(calls[0].log_preference.shape) == (1, 2, 16, 16)


def test_keys_of_grouped_queries_are_not_repeated() -> None:
    for call in captured("llama", tiny_inputs("llama")):
        assert call.query.shape == (3, 4, TOKENS, 8)
        assert call.key.shape == (3, 2, TOKENS, 8)
        assert call.site.num_heads == 4


def test_sites_are_named_by_module_kind_and_layer() -> None:
    sites = [call.site for call in captured("marian", tiny_inputs("marian"))]
    by_kind = {
        kind: [s for s in sites if s.kind == kind] for kind in ("encoder_self", "decoder_self", "cross")
    }
    assert {kind: [s.layer for s in found] for kind, found in by_kind.items()} == {
        "encoder_self": [1, 2],
        "decoder_self": [1, 2, 3],
        "cross": [1, 2, 3],
    }
    assert by_kind["cross"][1].name == "decoder.layers.1.encoder_attn"
    assert by_kind["decoder_self"][2].name == "decoder.layers.2.self_attn"


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        *((family, ["encoder_self"] * 2) for family in ("bert", "distilbert", "vit", "modernbert")),
        *((family, ["decoder_self"] * 2) for family in ("gpt2", "llama", "qwen3", "mistral", "clip_text")),
        ("t5", ["encoder_self"] * 2 + ["decoder_self", "cross"] * 2),
        ("marian", ["encoder_self"] * 2 + ["decoder_self", "cross"] * 3),
    ],
)
def test_kinds(family: str, expected: list[str]) -> None:
    assert [call.site.kind for call in captured(family, tiny_inputs(family))] == expected


def test_kinds_of_families_used_in_unusual_ways() -> None:
    def kinds(family: str, **options: Any) -> set[str]:
        return {call.site.kind for call in captured(family, tiny_inputs(family, padding="none"), **options)}

    assert kinds("bert", is_decoder=True) == {"decoder_self"}
    assert kinds("mobilebert") == {"encoder_self"}  # its values come from another tensor than its keys
    assert kinds("llama", is_causal=False) == {"encoder_self"}


def test_a_module_shared_by_layers_is_a_layer_each_time() -> None:
    calls = captured("albert", tiny_inputs("albert"), space="input")
    assert [call.site.layer for call in calls] == [1, 2, 3]
    assert len({call.site.name for call in calls}) == 1
    assert not torch.equal(calls[0].query, calls[1].query)


def test_counted_is_padding_and_what_the_caller_leaves_out() -> None:
    inputs = tiny_inputs("t5")
    keep, keep_decoder = torch.rand(3, TOKENS) < 0.5, torch.rand(3, TOKENS - 2) < 0.5
    calls: list[AttentionCall] = []
    with Capture(tiny_model("t5"), space="key", consume=calls.append) as capture:
        capture.run(inputs, counted=keep, counted_decoder=keep_decoder)
    for call in calls:
        if call.site.kind == "encoder_self":
            assert torch.equal(call.counted, keep & (inputs["attention_mask"] == 1))
        else:
            assert torch.equal(call.counted, keep_decoder & (inputs["decoder_attention_mask"] == 1))


def test_every_token_of_an_image_counts() -> None:
    for call in captured("vit", tiny_inputs("vit", batch=2)):
        assert call.counted.shape == (2, 5)  # four patches and the class token
        assert call.counted.all()


def test_a_mask_given_in_full_is_used_as_it_is() -> None:
    inputs = tiny_inputs("bert", padding="none")
    mask = torch.rand(3, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[1, 0, 4] = False
    inputs["attention_mask"] = mask
    for call in captured("bert", inputs):
        assert call.log_preference is not None
        assert torch.equal(call.log_preference > -torch.inf, mask)
        assert call.counted.sum() == 3 * TOKENS - 1
        assert not call.counted[1, 4]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_keep_their_dtype_and_a_float32_preference(dtype: torch.dtype) -> None:
    for family in ("bert", "t5"):
        for call in captured(family, tiny_inputs(family), space="input", dtype=dtype):
            assert call.query.dtype == call.key.dtype == dtype
            assert call.log_preference is not None
            assert call.log_preference.dtype == torch.float32


def test_a_single_token_is_captured() -> None:
    inputs = {"input_ids": torch.tensor([[5]])}
    assert [call.site.kind for call in captured("bert", inputs, space="input")] == ["encoder_self"] * 2
    assert [call.site.kind for call in captured("gpt2", inputs, space="input")] == ["decoder_self"] * 2


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("llama", "rotary position embeddings turn the keys"),
        ("qwen3", "rotary position embeddings turn the keys and the keys are normalised \\(k_norm\\)"),
        ("modernbert", "rotary position embeddings turn the keys"),
    ],
)
def test_input_space_is_refused_where_keys_are_no_linear_map(family: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{reason}.*Use space='key'"):
        captured(family, tiny_inputs(family), space="input")


def test_rotary_keys_are_found_out_after_a_first_batch_of_single_tokens() -> None:
    with Capture(tiny_model("llama"), space="input", consume=lambda call: None) as capture:
        capture.run({"input_ids": torch.tensor([[5]])})  # position 0: the rotation is the identity
        with pytest.raises(ModelError, match="rotary"):
            capture.run(tiny_inputs("llama"))


def test_adapted_weights_are_refused_in_input_space() -> None:
    model = tiny_model("bert")
    key = model.encoder.layer[1].attention.self.key
    key.register_forward_hook(lambda _module, _args, output: output + 1e-6 * output.square())
    with (
        Capture(model, space="input", consume=lambda call: None) as capture,
        pytest.raises(ModelError, match=r"layer.1.*key's weight times its input.*Use space='key'"),
    ):
        capture.run(tiny_inputs("bert"))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("gemma2", "layers.0.self_attn \\(Gemma2Attention\\) passes 'softcap'"),
        ("deberta_v2", "DebertaV2Model computes attention in DisentangledSelfAttention"),
        ("longt5", "LongT5Model computes attention in LongT5LocalAttention"),
        ("diffllama", "layers.0.self_attn \\(DiffLlamaAttention\\) attended 2 times"),
    ],
)
def test_what_cannot_be_captured_is_refused_by_name(family: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        captured(family, tiny_inputs(family))


def test_a_family_whose_own_attention_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    own = modeling_llama.eager_attention_forward
    monkeypatch.setattr(
        modeling_llama,
        "eager_attention_forward",
        lambda module, query, *args, **kwargs: own(module, 0.9 * query, *args, **kwargs),
    )
    with pytest.raises(ModelError, match=r"layers.0.self_attn \(LlamaAttention\).*changes its scores"):
        captured("llama", tiny_inputs("llama"))


def test_weights_that_are_not_finite_are_named() -> None:
    model = tiny_model("bert")
    model.encoder.layer[0].attention.self.value.weight.data[0, 0] = float("nan")
    with (
        Capture(model, space="key", consume=lambda call: None) as capture,
        pytest.raises(ModelError, match=r"layer.0.*NaN or infinity"),
    ):
        capture.run(tiny_inputs("bert"))


def test_a_model_in_training_mode_is_refused() -> None:
    model = tiny_model("bert")
    model.encoder.layer[1].train()
    with (
        Capture(model, space="key", consume=lambda call: None) as capture,
        pytest.raises(ModelError, match=r"training mode in encoder.layer.1.*model.eval"),
    ):
        capture.run(tiny_inputs("bert"))


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match="got a Linear"):
        Capture(torch.nn.Linear(2, 2), space="key", consume=lambda call: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": "head"}, "space is 'head'; expected 'input' or 'key'"),
        ({"layers": []}, r"layers is \[\]; expected"),
        ({"layers": [1, 0]}, r"layers is \[1, 0\]; expected"),
        ({"layers": [1.5]}, r"layers is \[1.5\]; expected"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Capture(tiny_model("bert"), **{"space": "key", "consume": print, **options})


def test_a_site_that_is_skipped_is_an_error() -> None:
    model = tiny_model("bert")
    model.encoder.layer[1].forward = lambda hidden_states, *args, **kwargs: hidden_states
    with (
        Capture(model, space="key", consume=lambda call: None) as capture,
        pytest.raises(CaptureError, match=r"encoder.layer.1.attention.self did not attend"),
    ):
        capture.run(tiny_inputs("bert"))


def test_a_site_that_is_skipped_later_is_an_error() -> None:
    model = tiny_model("albert")
    with Capture(model, space="key", consume=lambda call: None) as capture:
        capture.run(tiny_inputs("albert"))
        model.config.num_hidden_layers = 2
        model.encoder.config.num_hidden_layers = 2
        with pytest.raises(CaptureError, match="did not attend in this forward"):
            capture.run(tiny_inputs("albert"))


def test_only_the_layers_asked_for_are_consumed() -> None:
    seen: list[tuple[str, int]] = []
    consume = lambda call: seen.append((call.site.kind, call.site.layer))  # noqa: E731
    with Capture(tiny_model("marian"), space="input", consume=consume, layers=[3, 1]) as capture:
        for _ in range(2):
            capture.run(tiny_inputs("marian"))
    assert len(capture.sites) == 8
    assert sorted(set(seen)) == [
        ("cross", 1),
        ("cross", 3),
        ("decoder_self", 1),
        ("decoder_self", 3),
        ("encoder_self", 1),
    ]
    assert len(seen) == 2 * 5


@pytest.mark.parametrize("error", [TypeError("mine"), ValueError("mine"), KeyboardInterrupt("mine")])
def test_what_the_consumer_raises_comes_through_and_the_model_is_restored(error: BaseException) -> None:
    model = tiny_model("t5")
    model.decoder.set_attn_implementation("eager")
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    before = (model.config._attn_implementation, model.encoder.config._attn_implementation, hooks())

    def fail(call: AttentionCall) -> None:
        assert not torch.is_grad_enabled()
        if call.site.kind == "cross":
            raise error

    with Capture(model, space="input", consume=fail) as capture, pytest.raises(type(error)) as raised:
        capture.run(tiny_inputs("t5"))
    assert raised.value is error
    assert before == (model.config._attn_implementation, model.encoder.config._attn_implementation, hooks())
    assert model.decoder.config._attn_implementation == "eager"
    assert torch.is_grad_enabled()


def test_a_capture_goes_on_after_an_error_in_the_consumer() -> None:
    calls: list[AttentionCall] = []
    fail = True

    def consume(call: AttentionCall) -> None:
        if fail and call.site.layer == 2:
            raise ValueError("once")
        calls.append(call)

    with Capture(tiny_model("bert"), space="input", consume=consume) as capture:
        with pytest.raises(ValueError, match="once"):
            capture.run(tiny_inputs("bert"))
        fail = False
        calls.clear()
        capture.run(tiny_inputs("bert"))
    assert [call.site.layer for call in calls] == [1, 2]


def test_nothing_is_kept_after_a_forward() -> None:
    alive: list[weakref.ref[Tensor]] = []
    consume = lambda call: alive.extend(weakref.ref(t) for t in (call.query, call.inputs, call.counted))  # noqa: E731
    with Capture(tiny_model("bert"), space="input", consume=consume) as capture:
        for _ in range(2):
            capture.run(tiny_inputs("bert"))
            gc.collect()
            assert alive
            assert [reference() for reference in alive] == [None] * len(alive)


def test_the_model_is_its_own_between_forwards() -> None:
    model = tiny_model("bert")
    inputs = tiny_inputs("bert")
    expected = model(**inputs).last_hidden_state
    calls: list[AttentionCall] = []
    with Capture(model, space="input", consume=calls.append) as capture:
        capture.run(inputs)
        seen = len(calls)
        assert torch.equal(model(**inputs).last_hidden_state, expected)
        assert len(calls) == seen


def test_a_model_cannot_be_captured_twice_at_once() -> None:
    model = tiny_model("bert")
    with (
        Capture(model, space="key", consume=lambda call: None),
        pytest.raises(CaptureError, match="captured already"),
        Capture(model, space="key", consume=lambda call: None),
    ):
        pass
    with Capture(model, space="key", consume=lambda call: None) as again:
        again.run(tiny_inputs("bert"))


def test_run_needs_the_capture_to_be_entered() -> None:
    with pytest.raises(CaptureError, match="outside of the capture"):
        Capture(tiny_model("bert"), space="key", consume=lambda call: None).run(tiny_inputs("bert"))


def test_an_encoder_decoder_without_decoder_inputs_says_what_makes_them() -> None:
    inputs = {name: value for name, value in tiny_inputs("t5").items() if "decoder" not in name}
    with (
        Capture(tiny_model("t5"), space="key", consume=lambda call: None) as capture,
        pytest.raises(InputError, match=r"T5Model has a decoder and needs decoder_input_ids.*decoder_inputs"),
    ):
        capture.run(inputs)


def test_the_stack_of_an_encoder_decoder_can_be_captured_alone() -> None:
    calls: list[AttentionCall] = []
    inputs = {name: value for name, value in tiny_inputs("t5").items() if "decoder" not in name}
    with Capture(tiny_model("t5").encoder, space="input", consume=calls.append) as capture:
        capture.run(inputs)
    assert [call.site.kind for call in calls] == ["encoder_self"] * 2
