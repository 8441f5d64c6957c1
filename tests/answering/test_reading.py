"""Readers in use: their answers are those of the model, lines are named, and both directions are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fenchel.answering import classify, entail, lines_of_file, pair_lines
from fenchel.errors import InputError
from fenchel.models.relatedness import expected_degree
from fenchel.train import load_model
from tests.train.reading.small_readings import compared, pair_splits, read, splits


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    read(folder, epochs=3, estimator="exact", alpha=4.0, longest=12)
    return folder


@pytest.fixture(scope="module")
def pairs_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    compared(folder, epochs=3, heads=1, alpha=4.0)
    return folder


def test_a_sentence_has_the_class_that_the_model_gives_it(reader):
    from fenchel.train.reading import SentenceReading
    from fenchel.train.workers import Workers
    from tests.train.reading.small_readings import read_options

    options = read_options(estimator="exact", alpha=4.0, longest=12).resolved()
    task = SentenceReading(options, splits(), Workers(0, 1, torch.device("cpu")))
    (batch,) = task.examples("test")
    with torch.no_grad():
        probabilities = load_model(reader)(**task.inputs(batch)).double().softmax(-1)
    answers = classify(reader, [" ".join(words) for words in splits().test.words])
    for answer, row in zip(answers, probabilities, strict=True):
        assert list(answer.probabilities) == ["person", "place", "time"]
        assert torch.allclose(torch.tensor(list(answer.probabilities.values())).double(), row, atol=1e-6)
        assert answer.probabilities[answer.label] == max(answer.probabilities.values())
    alone = classify(reader, answers[3].sentence)[0]
    assert alone.label == answers[3].label
    assert alone.to_json().keys() == {"sentence", "label", "probabilities"}


def test_what_a_question_attends_to_is_shown(reader):
    (answer,) = classify(reader, ["Who is the old song?"], show=True)
    assert len(answer.maps) == 2
    first = answer.maps[0]
    assert (first.queries, first.keys) == (("question",), ("Who", "is", "the", "old", "song", "?"))
    assert first.estimator == "exact"
    assert bool(first.solved.all())
    assert first.exact.sum().item() == pytest.approx(1.0)
    assert "attention" in answer.to_json()


def test_pairs_are_answered_and_both_directions_shown(pairs_run):
    pairs = [("The dog sleeps.", "No dog sleeps"), ("A cat runs there", "A cat runs")]
    answers = entail(pairs_run, pairs)
    for answer, pair in zip(answers, pairs, strict=True):
        assert (answer.premise, answer.hypothesis) == pair
        assert sum(answer.probabilities.values()) == pytest.approx(1.0)
        assert answer.relatedness is not None
        assert 1 <= answer.relatedness <= 5
    (shown,) = entail(pairs_run, pairs[:1], show=True)
    assert shown.probabilities == pytest.approx(answers[0].probabilities, abs=1e-6)
    there, back = shown.maps
    assert (there.queries, there.keys) == (("The", "dog", "sleeps", "."), ("No", "dog", "sleeps"))
    assert (back.queries, back.keys) == (there.keys, there.queries)
    model = load_model(pairs_run)
    from fenchel.answering.trained_run import TrainedRun

    numbers = TrainedRun.read(pairs_run, tasks=("pairs",)).subwords.encoded([*pairs[0]])
    with torch.no_grad():
        sides = [model.read(torch.tensor([one])) for one in numbers]  # type: ignore[operator]
        weights = [one.weights[0, 0].double() for one in model.asked(*sides, need_weights=True)]  # type: ignore[operator]
        said = model(*(torch.tensor([one]) for one in numbers))["relatedness"]
    for one, expected in zip(shown.maps, weights, strict=True):
        assert torch.allclose(one.first_order, expected, atol=1e-5)
    assert answers[0].relatedness == pytest.approx(expected_degree(said).item(), abs=1e-5)


def test_lines_of_a_file_are_pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("a dog\ta cat\nonly one\n")
    with pytest.raises(InputError, match=r"pairs\.tsv, line 2 has 1 columns; expected a premise, a tab"):
        pair_lines(lines_of_file(file))
    file.write_text("a dog\t \n")
    with pytest.raises(InputError, match=r"pairs\.tsv, line 1, hypothesis is empty"):
        pair_lines(lines_of_file(file))


def test_what_cannot_be_answered_is_named(reader, pairs_run, tmp_path):
    with pytest.raises(InputError, match="sentence 2 has 14 tokens; expected at most 12, as in training"):
        classify(reader, ["who", "who " * 14])
    with pytest.raises(InputError, match="sentence 1 is empty"):
        classify(reader, ["  "])
    with pytest.raises(InputError, match=r"another kind \(classifier\); expected one of pairs"):
        entail(reader, [("a", "b")])
    with pytest.raises(InputError, match=r"another kind \(pairs\); expected one of classifier"):
        classify(pairs_run, ["a"])
    with pytest.raises(InputError, match="pair 1 is 'ab'; expected a premise and a hypothesis"):
        entail(pairs_run, ["ab"])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"pairs is \[\]; expected pairs"):
        entail(pairs_run, [])
    read(tmp_path, pooling="mean", epochs=1)
    assert classify(tmp_path, ["who is it"])[0].maps == ()
    with pytest.raises(InputError, match="holds a model without attention, so that there is nothing to show"):
        classify(tmp_path, ["who is it"], show=True)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json is not what the training wrote"):
        classify(tmp_path, ["who is it"])


def test_labels_alone_are_answered_without_relatedness(tmp_path):
    compared(tmp_path, data=pair_splits(related=False), epochs=1)
    (answer,) = entail(tmp_path, [("a dog", "a cat")])
    assert answer.relatedness is None
    assert "relatedness" not in answer.to_json()
