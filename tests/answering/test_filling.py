"""Words for blanks: those of the model's own probabilities, whatever the objective, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fenchel.answering import fill, lines_of_file
from fenchel.errors import InputError
from fenchel.models import Cloze
from fenchel.train import load_model
from tests.train.cloze.small_blanks import filled
from tests.train.text.small_texts import classified

TEXT = "the dog [MASK] loudly ."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloze")
    filled(folder, epochs=2)
    return folder


def test_words_are_the_likeliest_of_the_model(run):
    (answer,) = fill(run, [TEXT], top=3)
    assert answer.tokens == ("[CLS]", "the", "dog", "[MASK]", "loudly", ".", "[SEP]")
    (blank,) = answer.blanks
    assert blank.place == 3
    assert answer.filled == TEXT.replace("[MASK]", blank.words[0])
    from fenchel.answering import TrainedRun

    opened = TrainedRun.read(run, tasks=("cloze",))
    model = load_model(run)
    assert isinstance(model, Cloze)
    numbers = torch.tensor([[opened.subwords.number(token) for token in answer.tokens]])
    with torch.no_grad():
        probabilities = model(numbers)["words"][0, 3].softmax(-1)
    for word, probability in zip(blank.words, blank.probabilities, strict=True):
        assert probability == pytest.approx(float(probabilities[opened.subwords.number(word)]), rel=1e-5)
    ordinary = [p for n, p in enumerate(probabilities.tolist()) if n not in opened.subwords.special]
    assert list(blank.probabilities) == pytest.approx(sorted(ordinary, reverse=True)[:3], rel=1e-5)


def test_signs_are_taken_apart_and_capitals_made_small(run):
    apart, joined = fill(run, ["the dog [MASK] loudly .", "The dog [MASK] loudly."])
    assert apart.tokens == joined.tokens
    assert joined.filled.startswith("The dog ")
    assert joined.filled.endswith(" loudly.")
    (unknown,) = fill(run, ["the quux [MASK]"], top=100)
    assert "[UNK]" in unknown.tokens
    assert not set(unknown.blanks[0].words) & {"[UNK]", "[PAD]", "[MASK]", "[CLS]", "[SEP]"}


def test_several_blanks_are_filled_each_by_itself(run):
    (answer,) = fill(run, ["[MASK] dog [MASK] loudly ."])
    assert [blank.place for blank in answer.blanks] == [1, 3]
    first, second = (blank.words[0] for blank in answer.blanks)
    assert answer.filled == f"{first} dog {second} loudly ."


def test_maps_have_a_row_for_each_blank(run):
    (answer,) = fill(run, ["the [MASK] [MASK] loudly ."], show=True)
    assert [one.title for one in answer.maps] == ["blanks to words, head 1", "blanks to words, head 2"]
    for one in answer.maps:
        assert one.queries == ("[MASK] 2", "[MASK] 3")
        assert one.keys == answer.tokens
        assert one.first_order.shape == (2, 7)
        torch.testing.assert_close(one.exact.sum(-1), torch.ones(2, dtype=torch.float64))
        assert bool(one.solved.all())
    assert answer.to_json()["attention"][0]["queries"] == ["[MASK] 2", "[MASK] 3"]


def test_lines_of_a_file_have_their_place(run, tmp_path):
    (tmp_path / "text.txt").write_text("the [MASK] barks\nthe dog barks\n")
    with pytest.raises(InputError, match=r"text\.txt, line 2 is 'the dog barks' and has no \[MASK\]"):
        fill(run, lines_of_file(tmp_path / "text.txt"))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["the dog barks"], r"text 1 is 'the dog barks' and has no \[MASK\]"),
        (["[MASK]", ""], "text 2 is empty"),
        ([], "there is no text"),
        (["[MASK] " * 13], "text 1 has 13 tokens; expected at most 12"),
        ([3], "text 1 is 3; expected a text"),
    ],
    ids=str,
)
def test_what_cannot_be_filled_is_named(run, texts, words):
    with pytest.raises(InputError, match=words):
        fill(run, texts)


def test_other_runs_and_damaged_ones_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no trained model"):
        fill(tmp_path, [TEXT])
    classified(tmp_path / "text", epochs=1)
    with pytest.raises(InputError, match="a training of another kind"):
        fill(tmp_path / "text", [TEXT])
    filled(tmp_path / "cloze", epochs=1)
    (tmp_path / "cloze" / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json is not what the training wrote"):
        fill(tmp_path / "cloze", [TEXT])
    (tmp_path / "cloze" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read"):
        fill(tmp_path / "cloze", [TEXT])


def test_a_causal_model_says_what_comes_next(tmp_path):
    filled(tmp_path, epochs=1, objective="causal")
    one, other = fill(tmp_path, ["the dog [MASK]", "the dog [MASK] softly ."], show=True)
    assert one.blanks[0].words == other.blanks[0].words
    assert one.blanks[0].probabilities == pytest.approx(other.blanks[0].probabilities, rel=1e-5)


def test_two_languages_are_told_by_where_they_stand(tmp_path):
    filled(tmp_path, paired=True, epochs=1, objective="tlm")
    both, source, target = fill(
        tmp_path,
        [
            "the dog [MASK] loudly . ||| der hund bellt laut .",
            "the dog [MASK] loudly . |||",
            " ||| der hund [MASK] laut .",
        ],
    )
    assert both.tokens.count("[SEP]") == 2
    assert source.tokens.count("[SEP]") == target.tokens.count("[SEP]") == 1
    with pytest.raises(InputError, match="has 3 parts"):
        fill(tmp_path, ["a ||| b ||| [MASK]"])
    filled(tmp_path / "apart", paired=True, epochs=1)
    with pytest.raises(InputError, match="was trained on single ones"):
        fill(tmp_path / "apart", ["the [MASK] ||| der hund"])
