"""Greedy generation with a cache, where queries and keys differ in number and masks grow."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.integrations.transformers import use_backend
from tests.tiny_models import tiny_inputs, tiny_model

FAMILIES = [
    ("gpt2", "AutoModelForCausalLM"),
    ("gpt_neox", "AutoModelForCausalLM"),
    ("llama", "AutoModelForCausalLM"),
    ("mistral", "AutoModelForCausalLM"),
    ("t5", "AutoModelForSeq2SeqLM"),
    ("bart", "AutoModelForSeq2SeqLM"),
    ("marian", "AutoModelForSeq2SeqLM"),
]


def generate(
    family: str, head: str, estimator: str | None, *, use_cache: bool = True
) -> tuple[Tensor, Tensor]:
    """Tokens (B, new), and the logits that chose them, (new, B, vocabulary)."""
    model = tiny_model(family, head=head, dtype=torch.float32, attn_implementation="eager")
    padding = "left" if head == "AutoModelForCausalLM" else "right"
    inputs = {
        name: tensor
        for name, tensor in tiny_inputs(family, padding=padding).items()
        if name in ("input_ids", "attention_mask")
    }
    options: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": 8,
        "min_new_tokens": 8,
        "use_cache": use_cache,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with nullcontext() if estimator is None else use_backend(model, estimator):
        generated = model.generate(**inputs, **options)
    return generated.sequences, torch.stack(generated.logits)


@pytest.mark.parametrize(("family", "head"), FAMILIES)
def test_first_order_generates_the_tokens_of_eager_attention(family, head):
    tokens, logits = generate(family, head, None)
    assert tokens.unique().numel() > 2
    found_tokens, found_logits = generate(family, head, "first_order")
    assert torch.equal(found_tokens, tokens)
    torch.testing.assert_close(found_logits, logits, rtol=0, atol=2e-5 * float(logits.abs().max()))


@pytest.mark.parametrize("estimator", ["second_order", "exact"])
@pytest.mark.parametrize(("family", "head"), FAMILIES)
def test_the_cache_changes_nothing_for_the_other_estimators(family, head, estimator):
    tokens, logits = generate(family, head, estimator)
    found_tokens, found_logits = generate(family, head, estimator, use_cache=False)
    assert torch.equal(found_tokens, tokens)
    torch.testing.assert_close(found_logits, logits, rtol=0, atol=1e-3)
    _, own = generate(family, head, "first_order")
    assert (own[0] - logits[0]).abs().max() > 1e-4


def test_exact_inference_can_choose_other_tokens():
    exact, own = (generate("llama", "AutoModelForCausalLM", name)[0] for name in ("exact", "first_order"))
    assert not torch.equal(exact, own)
