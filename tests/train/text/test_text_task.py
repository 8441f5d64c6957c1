"""Sentences: what is trained, validated and tested on, when, and that every option counts."""

from __future__ import annotations

import json
import math
import os

import pytest
import torch

from fenchel.data import Sentences, Vocabulary
from fenchel.data.vocabulary import UNKNOWN
from fenchel.errors import InputError
from fenchel.train import TextOptions, TrainResult, load_model, train
from fenchel.train.text import TextClassification
from fenchel.train.workers import Workers
from tests.train.text.small_texts import classified, sentences, text_options

CPU = torch.device("cpu")


def task(
    rank: int = 0, count: int = 1, *, data: tuple[Sentences, Sentences] | None = None, **changes: object
):
    given = (sentences(), sentences(20, seed=1)) if data is None else data
    return TextClassification(text_options(**changes).resolved(), given, Workers(rank, count, CPU))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    models = ("attention-pooling", "mean-pooling")
    return {model: classified(tmp_path_factory.mktemp(model), model=model) for model in models}


@pytest.mark.parametrize("model", ["attention-pooling", "mean-pooling"])
def test_it_learns_and_writes_what_came_of_it(tmp_path, model):
    result = classified(tmp_path, model=model, epochs=15, dropout=0.0)
    assert result.headline is not None
    assert result.headline > 0.9
    assert TrainResult.read(tmp_path) == result
    written = json.loads((tmp_path / "results.json").read_text())
    assert (written["task"], written["finished"]) == ("text", True)
    assert written["test_accuracy"] == result.test_accuracy == result.headline
    assert written["best_validation_accuracy"] == max(one["validation_accuracy"] for one in result.epochs)
    assert written["data"]["train_sentences"] == 54
    assert written["data"]["validation_sentences"] == 6
    assert written["model"]["class_names"] == ["person", "place", "time"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_test_is_read_after_the_last_epoch_alone(tmp_path):
    result = classified(tmp_path, epochs=5, evaluate_every=2)
    tested = [epoch["test_accuracy"] is not None for epoch in result.epochs]
    validated = [epoch["validation_accuracy"] is not None for epoch in result.epochs]
    assert tested == [False, False, False, False, True]
    assert validated == [False, True, False, True, True]
    assert result.best_epoch in (2, 4, 5)


def test_the_saved_model_and_vocabulary_reproduce_the_test(tmp_path):
    result = classified(tmp_path, estimator="exact")
    described, test = result.description["model"], sentences(20, seed=1)
    numbers = Vocabulary(tuple(described["words"])).numbers(test.words, longest=described["longest"])
    with torch.no_grad():
        logits = load_model(tmp_path)(numbers)
    labels = torch.tensor(test.labels)
    assert (logits.argmax(-1) == labels).double().mean().item() == pytest.approx(result.test_accuracy)
    assert torch.nn.functional.cross_entropy(logits, labels).item() == pytest.approx(
        result.test_loss, rel=1e-4
    )


def test_validation_is_held_out_the_same_for_every_seed_and_teaches_no_word():
    one, other = task(seed=0), task(seed=1, train_sentences=30)
    words = {split: set(batch.labels.tolist()) for split, batch in one._numbered.items()}
    assert words.keys() == {"train", "validation", "test"}
    assert (
        one.fingerprints()["validation_sentences_sha256"]
        == other.fingerprints()["validation_sentences_sha256"]
    )
    assert one.fingerprints()["train_sentences_sha256"] != other.fingerprints()["train_sentences_sha256"]
    known = sentences()
    marked = Sentences(
        tuple((*words, f"only{place}", f"only{place}") for place, words in enumerate(known.words)),
        known.labels, known.class_names, known.name,
    )  # fmt: skip
    held = task(data=(marked, sentences(20, seed=1)))
    (batch,) = held.examples("validation")
    assert len(held.vocabulary.words) == len(one.vocabulary.words) + 54
    assert (batch.numbers[:, -2:] == UNKNOWN).any()
    (train_batch,) = [held._numbered["train"]]
    assert not (train_batch.numbers == UNKNOWN).any()


def test_processes_share_the_batch_that_one_would_have_and_the_examples():
    whole = list(task().batches(3, 0))
    shares = [list(task(rank, 2).batches(3, 0)) for rank in range(2)]
    assert len(whole) == task().steps_per_epoch == 6
    for batch, *parts in zip(whole, *shares, strict=True):
        assert batch.labels.tolist() == [label for part in parts for label in part.labels.tolist()]
    labels = [
        label
        for rank in range(3)
        for part in task(rank, 3, batch_size=9).examples("test")
        for label in part.labels.tolist()
    ]
    assert sorted(labels) == sorted(sentences(20, seed=1).labels)


def test_batches_follow_from_seed_epoch_and_step_alone():
    later = list(task().batches(1, 4))
    assert [one.numbers.tolist() for one in later] == [
        one.numbers.tolist() for one in list(task().batches(1, 0))[4:]
    ]
    first = next(task().batches(0, 0)).numbers.tolist()
    assert first != next(task().batches(1, 0)).numbers.tolist()
    assert first != next(task(seed=1).batches(0, 0)).numbers.tolist()
    assert sum(batch.count for batch in task(batch_size=32).batches(0, 0)) == 32


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("attention-pooling", {"estimator": "second_order"}),
        ("attention-pooling", {"estimator": "exact"}),
        ("attention-pooling", {"preference": "position"}),
        ("attention-pooling", {"alpha": 8.0}),
        ("attention-pooling", {"heads": 4}),
        ("mean-pooling", {"width": 16}),
        ("mean-pooling", {"dropout": 0.0}),
        ("mean-pooling", {"train_sentences": 40}),
        ("mean-pooling", {"seed": 1}),
        ("mean-pooling", {"weight_decay": 0.5}),
    ],
    ids=str,
)
def test_each_option_changes_the_numbers(tmp_path, plain, model, changes):
    result = classified(tmp_path, model=model, **changes)
    ours, theirs = (
        [(epoch["train_loss"], epoch["validation_loss"]) for epoch in one.epochs]
        for one in (result, plain[model])
    )
    assert ours != theirs
    assert all(map(math.isfinite, ours[-1]))


def test_models_differ(plain):
    assert plain["attention-pooling"].epochs[0]["train_loss"] != plain["mean-pooling"].epochs[0]["train_loss"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vit"}, "model is 'vit'; expected one of attention-pooling, mean-pooling"),
        ({"estimator": "best"}, "estimator is 'best'; expected one of first_order, second_order, exact"),
        ({"preference": "last"}, "preference is 'last'; expected one of uniform, position"),
        ({"alpha": 0.0}, r"alpha is 0\.0; expected a finite number above 0"),
        ({"heads": 3}, "heads is 3 and width is 8; the number of heads must divide the width"),
        ({"train_sentences": 0}, "train sentences is 0; expected a whole number"),
        ({"model": "mean-pooling", "estimator": "exact"}, "estimator is 'exact' for the model 'mean-pooling'"),
        ({"model": "mean-pooling", "alpha": 2.0}, r"alpha is 2\.0 for the model 'mean-pooling'"),
        ({"model": "mean-pooling", "preference": "position"}, "preference is 'position' for the model 'mean-pooling'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_out_of_range_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        text_options(**changes)


def test_what_the_model_decides_is_filled_in():
    assert text_options().resolved().estimator == "first_order"
    assert text_options(model="mean-pooling").resolved().estimator is None
    assert text_options(estimator="exact").resolved().model_title == "attention-pooling (exact)"
    assert TextOptions.from_json(text_options().to_json()) == text_options()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="batch size is 8 for 3 processes; it must be a multiple of 3"):
        task(0, 3)
    with pytest.raises(
        InputError, match="55 sentences to train on were asked for and there are 54, besides 6"
    ):
        task(train_sentences=55)
    other = Sentences((("a",),), (0,), ("b",), "other")
    with pytest.raises(InputError, match="differ in their classes"):
        task(data=(sentences(), other))
    with pytest.raises(InputError, match="1 sentences to train on were asked for and there are 0, besides 1"):
        task(data=(sentences(1), sentences(1)))


@pytest.mark.skipif(
    "FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA names no folder with TREC's questions"
)
def test_trec_is_learnt(tmp_path):
    asked = TextOptions(data="trec", epochs=3, batch_size=64, precision="float32", train_sentences=3000)
    result = train(asked, tmp_path, device="cpu")
    assert result.headline is not None
    assert result.headline > 0.5, result.epochs
    assert result.description["data"]["note"] == ""
    assert result.description["data"]["test_sentences"] == 500
