"""Sentences: read as they stand in their files, and what is missing or wrong is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fenchel.data import Sentences, Vocabulary, load_sentences
from fenchel.data.vocabulary import PADDING, UNKNOWN
from fenchel.errors import InputError
from tests.train.text.small_texts import sentences, write_trec


def test_a_folder_is_read(tmp_path):
    train, test = load_sentences(write_trec(tmp_path))
    assert (len(train), len(test)) == (60, 12)
    assert train.words == sentences().words
    assert {train.class_names[label] for label in train.labels} == {"HUM", "LOC", "NUM"}
    assert train.note == "60 questions to train on, not the official 5,452"
    assert train.digest != test.digest
    assert train.digest == load_sentences(tmp_path)[0].digest


def test_latin_1_and_the_published_names_are_read(tmp_path):
    (tmp_path / "train_5500.label").write_bytes("HUM:ind Who is Zoë ?\n".encode("latin-1"))
    (tmp_path / "TREC_10.label").write_bytes(b"LOC:city Where is it ?\r\n\r\n")
    train, test = load_sentences(tmp_path)
    assert train.words == (("who", "is", "zoë", "?"),)
    assert test.words == (("where", "is", "it", "?"),)


def test_a_name_is_found_under_the_root(tmp_path, monkeypatch):
    write_trec(tmp_path / "text_classification")
    assert len(load_sentences("trec", root=tmp_path)[0]) == 60
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    assert load_sentences("trec")[1].name == "trec"


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    with pytest.raises(
        InputError, match="'trec' is read from files, and neither FENCHEL_DATA nor a root says where"
    ):
        load_sentences("trec")
    with pytest.raises(
        InputError, match=r"'trec' is not under .*text_classification is no folder\. Put raw_TREC\.train"
    ):
        load_sentences("trec", root=tmp_path)
    with pytest.raises(
        InputError, match="'fashion-mnist' is neither a known set of texts nor a folder that exists"
    ):
        load_sentences("fashion-mnist")
    with pytest.raises(
        InputError, match=r"has no raw_TREC\.train and no train_5500\.label\. They are published"
    ):
        load_sentences(tmp_path)
    write_trec(tmp_path)
    (tmp_path / "raw_TREC.test").unlink()
    with pytest.raises(InputError, match=r"has no raw_TREC\.test and no TREC_10\.label"):
        load_sentences(tmp_path)


@pytest.mark.parametrize("line", ["WHO:ind Who ?", "HUM:ind", "HUM:ind   ", "Who is it ?", "0 Who ?", "\0\0"])
def test_a_line_that_is_no_question_is_named(tmp_path, line):
    folder = write_trec(tmp_path)
    with (folder / "raw_TREC.train").open("a", encoding="latin-1") as file:
        file.write(f"{line}\n")
    with pytest.raises(
        InputError, match=r"raw_TREC\.train, line 61 is .*; expected CLASS:subclass and a question"
    ):
        load_sentences(folder)


def test_an_empty_file_is_named(tmp_path: Path):
    (write_trec(tmp_path) / "raw_TREC.test").write_text("\n\n")
    with pytest.raises(InputError, match=r"raw_TREC\.test holds no questions"):
        load_sentences(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": ()}, "there are no sentences"),
        ({"words": [("a",)]}, "words is .*; expected a tuple"),
        ({"labels": (0, 0)}, "there are 1 sentences and 2 labels"),
        ({"labels": (2,)}, "the label of sentence 0 is 2; expected 0 to 1"),
        ({"labels": (True,)}, "the label of sentence 0 is True"),
        ({"words": ((),)}, r"sentence 0 is \(\); expected a tuple of at least one word"),
        ({"words": ("ab",)}, "sentence 0 is 'ab'; expected a tuple"),
    ],
    ids=str,
)
def test_sentences_have_words_and_labels(changes, message):
    with pytest.raises(InputError, match=f"mine: {message}"):
        Sentences(
            **{"words": (("a",),), "labels": (0,), "class_names": ("x", "y"), "name": "mine", **changes}
        )


def test_a_vocabulary_numbers_words_and_knows_no_others():
    known = Vocabulary.of([("b", "a", "b"), ("c", "a")], least=2)
    assert known.words == ("a", "b")
    assert len(known) == 4
    assert known.numbers([("b", "z", "a", "b"), ("c",)], longest=3).tolist() == [
        [3, UNKNOWN, 2],
        [UNKNOWN, PADDING, PADDING],
    ]
    assert known.numbers([], longest=3).shape[0] == 0
    with pytest.raises(InputError, match="the vocabulary is empty"):
        Vocabulary.of([("a",)], least=2)
    with pytest.raises(InputError, match="has a word twice"):
        Vocabulary(("a", "a"))


@pytest.mark.skipif(
    "FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA names no folder with TREC's questions"
)
def test_trec_is_as_published():
    train, test = load_sentences("trec")
    assert (len(train), len(test), train.note, test.note) == (5452, 500, "", "")
    assert train.words[0] == ("how", "did", "serfdom", "develop", "in", "and", "then", "leave", "russia", "?")
    assert [train.labels.count(label) for label in range(6)] == [86, 1162, 1250, 1223, 835, 896]
