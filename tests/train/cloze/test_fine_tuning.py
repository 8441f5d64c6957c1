"""Classifiers that begin with a model that fills in blanks, and the same model from scratch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.data import Sentences, Splits, Subwords
from fenchel.errors import InputError
from fenchel.models import Cloze
from fenchel.train import FineTuningOptions, TrainResult, load_model, train
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.cloze import FineTuning
from fenchel.train.cloze.pretrained import extended
from fenchel.train.workers import Workers
from tests.train.cloze.small_blanks import filled
from tests.train.small_trainings import Recorder
from tests.train.text.small_texts import classified, sentences


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloze")
    filled(folder, epochs=1, objective="mlm+nsp")
    return folder


def options(pretrained: Path, **changes: Any) -> FineTuningOptions:
    small = {"data": "small", "epochs": 2, "batch_size": 8, "precision": "float32", "learning_rate": 3e-3}
    return FineTuningOptions(**{**small, "pretrained": str(pretrained), **changes})


def tuned(directory: Path, pretrained: Path, **given: Any) -> TrainResult:
    passed = {name: given.pop(name) for name in ("resume", "observer") if name in given}
    data = (sentences(60), sentences(20, seed=1))
    return train(options(pretrained, **given), directory, data=data, device="cpu", **passed)


def task(pretrained: Path, *, rank: int = 0, count: int = 1, **changes: Any) -> FineTuning:
    data = Splits(sentences(60), None, sentences(20, seed=1))
    return FineTuning(
        options(pretrained, **changes).resolved(), data, Workers(rank, count, torch.device("cpu"))
    )


@pytest.mark.parametrize("weights", ["pretrained", "fresh"])
def test_it_begins_with_the_weights_asked_for(pretrained, weights):
    made = task(pretrained, weights=weights)
    torch.manual_seed(0)
    model = made.model()
    assert isinstance(model, Cloze)
    kept = Checkpoint.read(pretrained).selected
    own = model.state_dict()
    size = len(kept["embeddings.word.weight"])
    assert own["classify.weight"].shape == (3, 16)
    assert len(own["embeddings.word.weight"]) > size
    for name in ("embeddings.word.weight", "layers.0.self_attn.in_proj_weight", "templates.weight"):
        assert torch.equal(own[name][: len(kept[name])], kept[name]) == (weights == "pretrained")


def test_words_can_be_those_of_the_run_alone(pretrained):
    known = Subwords((pretrained / "tokenizer.json").read_text())
    assert task(pretrained, words="run").tokenizer == known
    more = task(pretrained).tokenizer
    assert more.number("who") >= len(known)
    assert more.encoded(["the dog [MASK]"]) == known.encoded(["the dog [MASK]"])


def test_pieces_of_words_are_not_extended():
    pieces = Subwords.learned(["a dog barks"] * 3, size=30)
    assert extended(pieces, ["quux quux"]) is pieces
    capitals = Subwords.learned(["a Dog barks"] * 3, size=30, kind="word", lower=True)
    assert extended(capitals, ["Quux QUUX"]).number("quux") == len(capitals)


def test_it_learns_and_is_read_back(tmp_path, pretrained):
    result = tuned(tmp_path, pretrained, epochs=15, learning_rate=1e-2, dropout=0.0)
    assert result.headline is not None
    assert result.headline > 0.8
    made, model = task(pretrained), load_model(tmp_path)
    hits = 0
    with torch.no_grad():
        for batch in made.examples("test"):
            logits = model(batch.numbers)["classes"]
            torch.testing.assert_close(logits, made.predicted(model, batch)["classes"])
            hits += int((logits.argmax(-1) == batch.labels).sum())
    assert result.headline == pytest.approx(hits / 20)
    assert Subwords((tmp_path / "tokenizer.json").read_text()) == made.tokenizer


def test_an_interrupted_training_goes_on_bit_for_bit(tmp_path, pretrained):
    whole = tuned(tmp_path / "a", pretrained)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "b", pretrained, observer=Recorder(4, interrupt))
    assert tuned(tmp_path / "b", pretrained, resume=True).headline == whole.headline
    one, other = Checkpoint.read(tmp_path / "a"), Checkpoint.read(tmp_path / "b")
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def test_processes_share_a_step(pretrained):
    alone = [batch.labels.tolist() for batch in task(pretrained).batches(0, 0)]
    shares = [
        [b.labels.tolist() for b in task(pretrained, rank=rank, count=2).batches(0, 0)] for rank in (0, 1)
    ]
    assert alone == [one + other for one, other in zip(*shares, strict=True)]


def test_what_is_no_pretrained_model_is_named(tmp_path, pretrained):
    with pytest.raises(InputError, match="pretrained is empty; expected the folder of a training"):
        FineTuningOptions(data="trec")
    with pytest.raises(InputError, match="which holds no trained model"):
        task(tmp_path)
    classified(tmp_path / "other", epochs=1)
    with pytest.raises(InputError, match="the folder of a training of 'attention-pooling'"):
        task(tmp_path / "other")
    with pytest.raises(InputError, match="weights is 'old'"):
        options(pretrained, weights="old")
    with pytest.raises(InputError, match="sentences to train on were asked for"):
        task(pretrained, train_sentences=100)


def test_a_damaged_tokenizer_is_named(tmp_path):
    filled(tmp_path, epochs=1)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json is not what the training wrote"):
        task(tmp_path)


def test_a_part_to_validate_on_is_taken_as_it_is(pretrained):
    data = Splits(sentences(60), sentences(10, seed=2), sentences(20, seed=1))
    made = FineTuning(
        options(pretrained, train_sentences=40).resolved(), data, Workers(0, 1, torch.device("cpu"))
    )
    assert [sum(batch.count for batch in made.examples(split)) for split in ("validation", "test")] == [
        10,
        20,
    ]
    assert made.steps_per_epoch == 5
    other = Splits(sentences(60), sentences(10, seed=2), replace(sentences(20), class_names=("a", "b", "c")))
    with pytest.raises(InputError, match="differ in their classes"):
        FineTuning(options(pretrained).resolved(), other, Workers(0, 1, torch.device("cpu")))


def test_long_sentences_are_cut_and_counted(pretrained):
    long = Sentences((("who",) * 40, ("where", "is"), ("when",)) * 4, (0, 1, 2) * 4, ("a", "b", "c"), "long")
    made = FineTuning(options(pretrained).resolved(), (long, long), Workers(0, 1, torch.device("cpu")))  # type: ignore[arg-type]
    assert made.described(made.model())["notes"][-1] == "4 sentences of test are cut after 13 tokens."
