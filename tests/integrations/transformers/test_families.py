"""Tiny random models of families unlike each other: swapped, captured and audited, or refused with the reason."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.families import TOLERANCE, outcome_of
from fenchel import Capture
from fenchel.integrations.transformers import attention_implementation, register, use_backend
from tests.normal import drawn
from tests.tiny_models import tiny_inputs, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = (
    *("gpt_oss", "mimo_v2_flash", "glm_moe_dsa"),  # sinks, and selected keys
    *("gemma3", "qwen2_vl", "siglip", "idefics2"),  # images beside text, torch's own attention
    *("whisper", "wav2vec2", "audioflamingo3"),  # sounds
    *("deepseek_v3", "mixtral", "florence2"),
    "deepseek_v4",  # written for masks that are added
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_swapped_and_audited(family):
    found = outcome_of(family, seed=1)
    assert (found.outcome, found.reason) == ("works", "")
    assert found.difference is not None
    assert found.difference <= TOLERANCE


def test_a_family_is_refused_with_the_reason():
    for family, reason in (
        ("gemma2", "passes 'softcap'"),
        ("bloom", "without the attention registry"),
        ("bridgetower", "is causal and passes no mask"),
    ):
        found = outcome_of(family, seed=1)
        assert found.outcome == "refused"
        assert reason in found.reason


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.tensor([[False, False, True], [False, True, True]])},
    "a head": {"attn_mask": torch.arange(72.0, dtype=torch.float64).view(6, 4, 3).sin()},
    "both": {
        "attn_mask": torch.ones(4, 3, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.tensor([[0.0, 0.5, -1.0], [2.0, 0.0, 0.0]], dtype=torch.float64),
    },
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "options", [{"batch_first": True}, {"kdim": 5, "vdim": 7, "bias": False}, {"unbatched": True}]
)
def test_torchs_own_attention_goes_through_the_registry(options, mask):
    register()
    unbatched = options.get("unbatched", False)
    given = {name: one for name, one in options.items() if name != "unbatched"}
    layer = nn.MultiheadAttention(12, 3, **given).double().eval()
    inputs = [drawn(2, n, width) for n, width in ((4, 12), (3, layer.kdim), (3, layer.vdim))]
    inputs = [one[0] if unbatched else one if layer.batch_first else one.transpose(0, 1) for one in inputs]
    masks = dict(MASKS[mask])
    if unbatched and "key_padding_mask" in masks:
        masks["key_padding_mask"] = masks["key_padding_mask"][0]
    if unbatched and mask == "a head":
        masks["attn_mask"] = masks["attn_mask"][:3]
    for average in (True, False):
        expected = layer(*inputs, **masks, average_attn_weights=average)
        with attention_implementation(layer, "fenchel_first_order"):
            found = layer(*inputs, **masks, average_attn_weights=average)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert "forward" not in vars(layer)


def test_torchs_encoder_layers_ask_the_registry_too():
    register()
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    tokens = drawn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    real = ~padding
    with torch.no_grad():
        expected = model(tokens, src_key_padding_mask=padding)[real]
        with attention_implementation(model, "fenchel_first_order"):
            found = model(tokens, src_key_padding_mask=padding)[real]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        with attention_implementation(model, "fenchel_exact"):
            assert not torch.allclose(model(tokens, src_key_padding_mask=padding)[real], expected, atol=1e-6)


# Of one layer, whose keys depend on no attention: no quantised rounding of theirs turns on the last bit.
CACHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gpt_oss", {}, {"cache_implementation": "static"}),
    ("t5", {}, {"cache_implementation": "static"}),
    ("llama", {"num_hidden_layers": 1}, {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "sizes", "cache"), CACHES)
def test_with_any_cache_it_generates_what_eager_attention_does(family, sizes, cache):
    head = "AutoModelForSeq2SeqLM" if family == "t5" else "AutoModelForCausalLM"
    model = tiny_model(family, head=head, dtype=torch.float32, attn_implementation="eager", **sizes)
    given = tiny_inputs(family, padding="none" if sizes else "left", dtype=torch.float32)
    options = {name: given[name] for name in ("input_ids", "attention_mask")} | cache
    options |= {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(**options)
    with use_backend(model, "first_order"):
        found = model.generate(**options)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-4)


def test_a_sink_is_the_last_template_of_a_captured_head():
    model = tiny_model("gpt_oss", dtype=torch.float32, attn_implementation="eager")
    inputs = tiny_inputs("gpt_oss", padding="none")
    expected = model(**inputs).last_hidden_state
    with Capture(model) as heads:
        found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    head = heads[1, 2]
    assert head.templates.shape[1] == inputs["input_ids"].shape[1] + 1
    assert not head.templates[:, -1].any()
    sink = model.layers[0].self_attn.sinks[1]
    torch.testing.assert_close(head.log_preference[..., -1], sink.expand_as(head.log_preference[..., -1]))
    (gradient,) = torch.autograd.grad(found.square().mean(), head.weights)
    assert gradient.shape == head.weights.shape
