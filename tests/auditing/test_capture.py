"""What is captured is what the model computes, in every family, kind and space; the rest is refused."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.capture import AttentionCall, Capture
from fenchel.nn import MixtureAttention
from tests.tiny_models import TOKENS, eager_weights, tiny_inputs, tiny_model

IN_FLOAT64 = ("bert", "distilbert", "t5", "gpt2", "marian", "albert", "mobilebert")
IN_FLOAT32 = ("vit", "swin", "clip_text")
"""Families that take their softmax in float32: their eager attention makes NaN of float64's finfo.min."""


def captured(
    family: str, inputs: dict[str, Any], *, space: Any = "key", forwards: int = 1, **options: Any
) -> list[AttentionCall]:
    calls: list[AttentionCall] = []
    with Capture(tiny_model(family, **options), space=space, consume=calls.append) as capture:
        for _ in range(forwards):
            capture.run(inputs)
    return calls


@pytest.mark.parametrize("padding", ["right", "left", "none", "no mask"])
@pytest.mark.parametrize("family", [*IN_FLOAT64, *IN_FLOAT32])
def test_input_space_gives_the_models_weights(family: str, padding: str) -> None:
    """Also in a second forward, which uses the key maps that the first has found."""
    dtype, tol = (torch.float64, 1e-10) if family in IN_FLOAT64 else (torch.float32, 2e-5)
    inputs = tiny_inputs(family, padding=padding.replace("no mask", "none"), dtype=dtype)
    if padding == "no mask":
        inputs = {name: value for name, value in inputs.items() if "mask" not in name}
    expected = eager_weights(family, inputs, dtype=dtype)
    calls = captured(family, inputs, space="input", forwards=2, dtype=dtype)
    for call, (name, weights) in zip(calls, 2 * expected, strict=True):
        assert call.site.name == name
        assert call.inputs is not None
        assert call.key_weight is not None
        # Without the bias of the key map, which is the same for all keys.
        scores = (call.query @ call.key_weight) @ (call.inputs[:, None] * call.scaling).mT
        found = (scores if call.log_preference is None else scores + call.log_preference).softmax(-1)
        rows = call.counted[:, None, :, None].expand_as(found)
        assert rows.any()
        torch.testing.assert_close(found[rows], weights.to(found)[rows], rtol=0, atol=tol)
        linear = torch.einsum("bnw,hdw->bhnd", call.inputs, call.key_weight)
        if call.key_bias is not None:
            linear = linear + call.key_bias[:, None, :]
        torch.testing.assert_close(linear, call.key, rtol=0, atol=tol)


def test_an_encoder_that_decodes_and_a_decoder_that_sees_all_have_another_kind() -> None:
    for family, options, kind in (
        ("bert", {"is_decoder": True}, "decoder_self"),
        ("llama", {"is_causal": False}, "encoder_self"),
    ):
        calls = captured(family, tiny_inputs(family, padding="none"), **options)
        assert {call.site.kind for call in calls} == {kind}


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


def skip(call: object) -> None:
    """Consume nothing."""


def capture(family: str = "bert", change: Callable[[Any], object] = id, **options: Any) -> None:
    """Capture a model that was changed."""
    model, inputs = tiny_model(family), options.pop("inputs", None) or tiny_inputs(family)
    change(model)
    with Capture(model, **{"space": "key", "consume": lambda call: None, **options}) as capture:
        capture.run(inputs)


def bends_its_keys(model: Any) -> None:
    key = model.encoder.layer[1].attention.self.key
    key.register_forward_hook(lambda _module, _args, output: output + 1e-6 * output.square())


def skips_a_layer(model: Any) -> None:
    model.encoder.layer[1].forward = lambda hidden_states, *args, **kwargs: hidden_states


def is_not_finite(model: Any, part: str = "value") -> None:
    getattr(model.encoder.layer[0].attention.self, part).weight.data[0, 0] = float("nan")


def has_scores_that_are_not_finite(model: Any) -> None:
    is_not_finite(model.float(), "query")  # torch's fused kernel gives finite outputs for NaN scores


ENCODED = {name: value for name, value in tiny_inputs("t5").items() if "decoder" not in name}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(capture, "llama", space="input"), ModelError, "rotary position embeddings.*space='key'"),
        (partial(capture, "qwen3", space="input"), ModelError, "a norm or something else changes them.*space='key'"),
        (partial(capture, change=bends_its_keys, space="input"), ModelError, r"layer.1.*key's weight"),
        (partial(capture, "gemma2"), ModelError, r"layers.0.self_attn \(Gemma2Attention\) passes 'softcap'"),
        (partial(capture, "deberta_v2"), ModelError, "attention in DisentangledSelfAttention"),
        (partial(capture, "diffllama"), ModelError, r"layers.0.self_attn .*attended 2 times"),
        *(
            (partial(capture, change=change), ModelError, r"layer.0.*own attention contain NaN or infinity")
            for change in (is_not_finite, has_scores_that_are_not_finite)
        ),
        (partial(capture, change=lambda model: model.encoder.layer[1].train()), ModelError, "encoder.layer.1.*eval"),
        (partial(capture, change=skips_a_layer), CaptureError, r"encoder.layer.1.attention.self did not attend"),
        (partial(capture, "t5", inputs=ENCODED), InputError, "needs decoder_input_ids"),
        (partial(capture, space="head"), InputError, "space is 'head'"),
        (partial(capture, kind="self"), InputError, "kind is 'self'; expected one of encoder_self, .*cross"),
        (partial(capture, layers="encoder"), InputError, "layers is 'encoder'; expected whole numbers from 1 or names"),
        (partial(capture, layers=[1, 0]), InputError, r"layers is \[1, 0\]"),
        (
            lambda: Capture(nn.ModuleDict({"mixed": MixtureAttention(8, 2)}).eval(), space="key", consume=skip),
            ModelError,
            "mixed is a MixtureAttention, whose templates are distributions",
        ),
        (lambda: Capture(tiny_model("bert"), space="key", consume=skip).run({}), CaptureError, "outside the"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_refused(call: Callable[[], None], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_rotary_keys_are_found_out_after_a_first_batch_of_single_tokens() -> None:
    with Capture(tiny_model("llama"), space="input", consume=skip) as capture:
        capture.run({"input_ids": torch.tensor([[5]])})  # position 0: the rotation is the identity
        with pytest.raises(ModelError, match="rotary"):
            capture.run(tiny_inputs("llama"))


def test_a_half_precision_stack_alone_keeps_its_dtype_and_a_float32_preference() -> None:
    calls: list[AttentionCall] = []
    with Capture(
        tiny_model("t5", dtype=torch.bfloat16).encoder, space="input", consume=calls.append
    ) as capture:
        capture.run(ENCODED)
    assert len(calls) == 2
    for call in calls:
        assert call.query.dtype == call.key.dtype == torch.bfloat16
        assert call.log_preference is not None
        assert call.log_preference.dtype == torch.float32


def test_a_capture_keeps_nothing_and_leaves_the_model_as_it_was_whatever_the_consumer_raises() -> None:
    model, inputs = tiny_model("t5"), tiny_inputs("t5")
    hooks = lambda: sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())  # noqa: E731
    before = (model.config._attn_implementation, hooks())
    expected = model(**inputs).last_hidden_state
    error: BaseException | None = KeyboardInterrupt("mine")
    alive: list[weakref.ref[Tensor]] = []
    kinds: list[str] = []

    def consume(call: AttentionCall) -> None:
        assert not torch.is_grad_enabled()
        if error is not None and call.site.kind == "cross":
            raise error
        kinds.append(call.site.kind)
        alive.extend(weakref.ref(t) for t in (call.query, call.inputs, call.counted))  # pyright: ignore[reportArgumentType]

    with Capture(model, space="input", consume=consume) as capture:
        with pytest.raises(KeyboardInterrupt, match="mine"):
            capture.run(inputs)
        error = None
        kinds.clear()
        alive.clear()  # the error's traceback keeps some
        capture.run(inputs)
        gc.collect()
        assert [reference() for reference in alive] == [None] * len(alive)
        assert torch.equal(model(**inputs).last_hidden_state, expected)
        assert kinds == ["encoder_self"] * 2 + ["decoder_self", "cross"] * 2
        again = Capture(model, space="key", consume=skip)
        with pytest.raises(CaptureError, match="already being captured"), again:
            pass
    assert before == (model.config._attn_implementation, hooks())
    assert torch.is_grad_enabled()
