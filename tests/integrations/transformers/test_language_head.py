"""Heads of language models are told by class and loaded where a checkpoint has them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fenchel.errors import ModelError
from fenchel.integrations.transformers import load_model
from fenchel.integrations.transformers.loading import automatic_class, language_head
from tests.swap.small_swaps import FAMILIES, language_model, tokenizer_of


@pytest.mark.parametrize(
    ("class_name", "head"),
    [
        ("BertForMaskedLM", "masked"),
        ("BertForPreTraining", "masked"),
        ("BertLMHeadModel", "causal"),
        ("LlamaForCausalLM", "causal"),
        ("BartForConditionalGeneration", "seq2seq"),
        ("T5ForConditionalGeneration", "seq2seq"),
        ("MarianMTModel", "seq2seq"),
        ("BertModel", None),
        ("BertForSequenceClassification", None),
        ("ElectraForPreTraining", None),
    ],
)
def test_heads_are_told_by_class(class_name: str, head: str | None):
    assert language_head(class_name) == head


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_head_is_loaded_when_it_is_wanted(family: str, tmp_path: Path):
    saved = language_model(family, dtype=torch.float32)
    saved.save_pretrained(tmp_path)
    tokenizer_of(family).save_pretrained(tmp_path)
    model, _, info = load_model(tmp_path, with_head=True)
    assert info.model_class == type(saved).__name__
    assert not model.training
    for name, parameter in saved.state_dict().items():
        # Marian's sinusoids are worked out anew and not saved; only the tiny model has others.
        assert "embed_positions" in name or torch.equal(model.state_dict()[name], parameter), name
    without, _, _ = load_model(tmp_path)
    assert language_head(type(without).__name__) is None


def test_sinusoids_that_are_not_saved_are_worked_out(tmp_path: Path):
    language_model("marian", dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer_of("marian").save_pretrained(tmp_path)
    without, _, _ = load_model(tmp_path)
    positions = without.get_encoder().embed_positions.weight
    frequencies = 1 / 10_000 ** (torch.arange(12) / 12)
    angles = torch.arange(len(positions))[:, None] * frequencies
    torch.testing.assert_close(
        positions.detach(), torch.cat([angles.sin(), angles.cos()], -1), atol=1e-5, rtol=0
    )


def test_a_checkpoint_of_the_body_alone_has_no_head(tmp_path: Path):
    language_model("bert", dtype=torch.float32).base_model.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    assert load_model(tmp_path, with_head=True)[2].model_class == "BertModel"
    # A configuration that promises a head which the weights lack must not bring a random one.
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ModelError, match=r"parameters of BertForMaskedLM .* which would be random"):
        load_model(tmp_path, with_head=True)


def test_two_different_heads_are_refused():
    config = SimpleNamespace(architectures=["BertForMaskedLM", "BertLMHeadModel"])
    with pytest.raises(ModelError, match="names BertForMaskedLM, BertLMHeadModel, whose heads differ"):
        automatic_class(config, "mine")
