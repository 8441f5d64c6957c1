"""Running text: articles are found by their titles, parted always alike, and what is missing or wrong is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fenchel.data.aligned import holds_pairs, load_aligned
from fenchel.data.articles import Articles, sentences_of
from fenchel.data.wikitext2 import load_articles
from fenchel.errors import InputError

PUBLISHED = Path(os.environ.get("FENCHEL_DATA") or "nowhere") / "plain_text"


def written(folder: Path, articles: int = 10, name: str = "text.txt") -> Path:
    """A folder with a file of articles."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(articles):
        lines += [
            "",
            f" = Title {number} = ",
            "",
            f"Dog {number} barks . It is <unk> !",
            " = = Part = = ",
            "The end",
        ]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_articles_sections_and_sentences(tmp_path):
    splits = load_articles(written(tmp_path))
    assert [len(split) for split in splits] == [8, 1, 1]
    texts = sorted(text for split in splits for text in split.texts)
    assert texts[3] == ("Dog 3 barks .", "It is <unk> !", "The end")
    assert len(set(texts)) == 10
    assert splits[0].note == "parted by article"


def test_lines_within_a_paragraph_that_look_like_titles_are_none(tmp_path):
    (tmp_path / "a.txt").write_text("one\n = Title = \ntwo\n\n = A = \n\nthree\n\n = B @-@ = \n\nfour\n")
    texts = [text for split in load_articles(tmp_path) for text in split.texts]
    assert sorted(texts) == [("four",), ("one", "= Title =", "two"), ("three",)]


def test_the_same_articles_always_validate_and_test(tmp_path):
    one, other = load_articles(written(tmp_path)), load_articles(tmp_path)
    assert [split.digest for split in one] == [split.digest for split in other]
    (tmp_path / "text.txt").write_text((tmp_path / "text.txt").read_text().replace("Dog 3", "Cat 3"))
    assert [split.digest for split in load_articles(tmp_path)] != [split.digest for split in one]


def test_official_splits_of_a_folder_are_kept(tmp_path):
    for name, articles in (("wiki.train.tokens", 4), ("valid.txt", 2), ("test.txt", 1)):
        written(tmp_path, articles, name)
    assert [len(split) for split in load_articles(tmp_path)] == [4, 2, 1]


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    with pytest.raises(InputError, match="'wikitext2' is read from files, and neither FENCHEL_DATA"):
        load_articles("wikitext2")
    (tmp_path / "plain_text").mkdir()
    with pytest.raises(InputError, match=r"plain_text has no wikitext2_valid\.txt"):
        load_articles("wikitext2", root=tmp_path)
    with pytest.raises(InputError, match="holds 0 articles; expected at least 3"):
        load_articles(tmp_path)
    with pytest.raises(InputError, match="holds 2 articles; expected at least 3"):
        load_articles(written(tmp_path, 2))
    with pytest.raises(InputError, match="'hf:' names no dataset"):
        load_articles("hf:")
    written(tmp_path, 10, "blank.txt").joinpath("blank.txt").write_text(" \n\n")
    with pytest.raises(InputError, match=r"blank\.txt holds no text"):
        load_articles(tmp_path)
    (tmp_path / "blank.txt").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(InputError, match=r"blank\.txt, line 2 is not UTF-8"):
        load_articles(tmp_path)


def test_a_dataset_of_the_library(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    for split in ("train", "validation", "test"):
        rows = ["", " = Title = \n", "", "A dog barks .\n", " = = Part = = \n", "It is loud .\n"]
        (tmp_path / f"{split}.jsonl").write_text(
            "\n".join(f'{{"text": {row!r}}}'.replace("'", '"') for row in rows)
        )
    train, _, test = load_articles(f"hf:{tmp_path}")
    assert train.texts == test.texts == (("A dog barks .", "It is loud ."),)


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("", []),
        ("a b", ["a b"]),
        ("a . b ? c", ["a .", "b ?", "c"]),
        ('" a . " b " c', ['" a . "', 'b " c']),
        ("one H. two @.@ 5 .", ["one H. two @.@ 5 ."]),
    ],
)
def test_sentences(line, sentences):
    assert sentences_of(line) == sentences


@pytest.mark.parametrize("texts", [(), [("a",)], ((),), (("a", " "),), (("a", 3),)])
def test_wrong_articles_are_named(texts):
    with pytest.raises(InputError, match="mine: "):
        Articles(texts, "mine")


def test_pairs_are_articles_of_two_sentences(tmp_path):
    for split in ("train", "val", "test_2017", "test_2016_flickr"):
        (tmp_path / f"{split}.en").write_text(f"A dog, {split}.\nTwo cats!\n")
        (tmp_path / f"{split}.de").write_text("Ein Hund.\nZwei Katzen!\n")
    assert holds_pairs(str(tmp_path))
    train, validation, test = load_aligned(tmp_path)
    assert train.languages == ("en", "de")
    assert train.texts == (("A dog , train .", "Ein Hund ."), ("Two cats !", "Zwei Katzen !"))
    assert validation.texts[0][0] == "A dog , val ."
    assert test.texts[0][0] == "A dog , test_2016_flickr ."
    assert not holds_pairs(str(written(tmp_path / "text", 1, "train.txt")))
    assert holds_pairs("multi30k")
    assert not holds_pairs("wikitext2")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="FENCHEL_DATA has no plain_text")
def test_wikitext2_as_it_is_published():
    splits = load_articles("wikitext2")
    assert [len(split) for split in splits] == [96, 12, 12]
    assert [split.words for split in splits] == [373_831, 38_890, 32_489]
    assert "without the two million words to train on" in splits[0].note
    assert any("<unk>" in sentence for sentence in splits[0].texts[0])
