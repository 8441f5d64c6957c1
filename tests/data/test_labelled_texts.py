"""Labelled sentences and pairs: read in their parts, and the line that cannot be used is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fenchel.data import LabelledPairs, Splits, load_labelled_pairs, load_labelled_sentences
from fenchel.data.labelled_pairs import ENTAILMENT
from fenchel.errors import InputError
from tests.train.text.small_texts import write_trec

SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
CAD_HEADER = "sentence1\tsentence2\tgold_label\n"
NEEDS_DATA = pytest.mark.skipif(
    "FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA names no folder with the published texts"
)


def write_sst(folder: Path, *, train: bytes = b"1 a film , good\n0 bad\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stsa.binary.train").write_bytes(train)
    (folder / "stsa.binary.dev").write_bytes(b"1 fine\n\n0 poor film\n")
    (folder / "stsa.binary.test").write_bytes("0 crème brûlée .\r\n".encode())
    return folder


def write_sick(folder: Path, *, row: str = '1\tA "dog" barks\tIt is loud\t3.6\tENTAILMENT\n') -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SICK_train.txt").write_text(SICK_HEADER + row, newline="")
    (folder / "SICK_trial.txt").write_text(f"{SICK_HEADER}2\ta\tb\t1\tNEUTRAL\n")
    (folder / "SICK_test_annotated.txt").write_text(
        f"{SICK_HEADER}3\ta\tb\t5.0\tCONTRADICTION\r\n", newline=""
    )
    return folder


def write_cad(folder: Path, *, row: str = 'A dog\t"It\tneutral\n') -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev", "test"):
        (folder / f"{part}.tsv").write_text(CAD_HEADER + (row if part == "train" else "a\tb\tentailment\n"))
    return folder


def test_sst_is_read_in_three_parts_and_what_is_not_official_is_noted(tmp_path):
    found = load_labelled_sentences(write_sst(tmp_path))
    assert found.train.words == (("a", "film", ",", "good"), ("bad",))
    assert found.validation is not None
    assert found.validation.labels == (1, 0)
    assert found.test.words == (("crème", "brûlée", "."),)
    assert found.test.class_names == ("negative", "positive")
    assert found.train.note == "2 sentences in train, not the official 6,920"


def test_trec_has_nothing_to_validate_on_and_a_folder_of_both_is_read_as_trec(tmp_path):
    write_sst(write_trec(tmp_path))
    found = load_labelled_sentences(tmp_path)
    assert (len(found.train), found.validation, len(found.test)) == (60, None, 12)


def test_pairs_are_read_as_they_stand_without_quoting(tmp_path):
    found = load_labelled_pairs(write_sick(tmp_path / "sick"))
    assert found.train.premises == ('A "dog" barks',)
    assert (found.train.labels, found.train.relatedness) == ((0,), (3.6,))
    assert found.test.labels == (2,)
    assert found.train.class_names == ENTAILMENT
    cad = load_labelled_pairs(write_cad(tmp_path / "cad"))
    assert (cad.train.hypotheses, cad.train.labels, cad.train.relatedness) == (('"It',), (1,), None)
    assert cad.train.digest != found.train.digest


def test_names_are_found_under_the_root(tmp_path, monkeypatch):
    write_sick(tmp_path / "nli_sick")
    write_cad(tmp_path / "nli_cad_snli" / "original")
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    assert load_labelled_pairs("sick").train.name == "sick"
    assert (
        load_labelled_pairs("cad-nli:original").train.note == "1 pairs in train.tsv, not the official 1,666"
    )
    with pytest.raises(InputError, match=r"'cad-nli' is not under .*all_combined is no folder"):
        load_labelled_pairs("cad-nli")
    with pytest.raises(
        InputError, match="cad-nli has no part 'some'; expected cad-nli:PART with one of all_combined"
    ):
        load_labelled_pairs("cad-nli:some")
    with pytest.raises(InputError, match=r"'sick' is neither a known .* exists; expected one of trec, sst2"):
        load_labelled_sentences("sick")
    with pytest.raises(
        InputError, match=r"'trec' is neither a known set of texts .* expected one of sick, cad-nli"
    ):
        load_labelled_pairs("trec")
    with pytest.raises(InputError, match=r"has no SICK_train\.txt"):
        load_labelled_pairs(tmp_path)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (b"1 good\n2 bad\n", "line 2 is '2 bad'; expected a label from 0 to 1, a space and a sentence"),
        (b"1 good\n\n1\n", "line 3 is '1'; expected a label"),
        (b"1   \n", "line 1 is '1   '; expected a label"),
        (b"good\n", "line 1 is 'good'; expected a label"),
        (b"1 good\n0 cr\xe8me\n", "line 2 is not UTF-8: byte 0xe8"),
        (b"\n", "holds no sentences; expected one a line"),
    ],
    ids=str,
)
def test_a_line_that_is_no_labelled_sentence_is_named(tmp_path, train, message):
    with pytest.raises(InputError, match=rf"stsa\.binary\.train,? {message}"):
        load_labelled_sentences(write_sst(tmp_path, train=train))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\ta\tb\t3.6\n", "line 2 has 4 columns; expected 5, parted by tabs: pair_ID, sentence_A"),
        ("1\ta\t \t3.6\tNEUTRAL\n", "line 2 has an empty sentence"),
        ("1\ta\tb\t3.6\tMAYBE\n", "line 2 has the label 'MAYBE'; expected one of ENTAILMENT, NEUTRAL"),
        ("1\ta\tb\t5.1\tNEUTRAL\n", "line 2 has the relatedness '5.1'; expected a number from 1 to 5"),
        ("1\ta\tb\tnan\tNEUTRAL\n", "line 2 has the relatedness 'nan'"),
        ("1\ta\tb\tmuch\tNEUTRAL\n", "line 2 has the relatedness 'much'"),
        ("", "holds no rows under its header"),
    ],
    ids=str,
)
def test_a_row_that_is_no_pair_is_named(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"SICK_train\.txt,? {message}"):
        load_labelled_pairs(write_sick(tmp_path, row=row))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\tb\n", "line 2 has 2 columns; expected 3"),
        ("a\t\tneutral\n", "line 2 has an empty sentence"),
        ("a\tb\tNEUTRAL\n", "line 2 has the label 'NEUTRAL'; expected one of entailment"),
    ],
    ids=str,
)
def test_so_is_one_of_counterfactual_pairs(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"train\.tsv, {message}"):
        load_labelled_pairs(write_cad(tmp_path, row=row))


def test_another_header_is_refused(tmp_path):
    write_cad(tmp_path)
    (tmp_path / "dev.tsv").write_text("sentence1,sentence2,gold_label\n")
    with pytest.raises(
        InputError, match=r"dev\.tsv, line 1 is 'sentence1,sentence2,gold_label'; expected the header"
    ):
        load_labelled_pairs(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"premises": ()}, "there are 0 premises, 1 hypotheses, 1 labels; expected as many of each"),
        ({"premises": (), "hypotheses": (), "labels": ()}, "there are no pairs of sentences"),
        ({"premises": ("  ",)}, "a sentence of pair 0 is '  '; expected some words"),
        ({"labels": (3,)}, "the label of pair 0 is 3; expected 0 to 2"),
        ({"relatedness": (0.5,)}, r"the relatedness of pair 0 is 0\.5; expected 1 to 5"),
        ({"relatedness": (1.0, 2.0)}, "there are 1 premises, 1 hypotheses, 1 labels, 2 relatedness"),
    ],
    ids=str,
)
def test_pairs_have_sentences_labels_and_degrees(changes, message):
    whole = {
        "premises": ("a",),
        "hypotheses": ("b",),
        "labels": (0,),
        "class_names": ENTAILMENT,
        "relatedness": None,
        "name": "mine",
    }
    with pytest.raises(InputError, match=f"mine: {message}"):
        LabelledPairs(**{**whole, **changes})


def test_datasets_are_read_and_rows_without_a_label_are_counted(tmp_path):
    datasets = pytest.importorskip("datasets")

    def saved(columns: dict[str, list[object]], classes: list[str], folder: str) -> str:
        kinds = {"label": datasets.ClassLabel(names=classes), "relatedness_score": datasets.Value("float32")}
        features = datasets.Features({name: kinds.get(name, datasets.Value("string")) for name in columns})
        part = datasets.Dataset.from_dict(columns, features=features)
        datasets.DatasetDict({"train": part, "validation": part, "test": part}).save_to_disk(
            tmp_path / folder
        )
        return f"hf:{tmp_path / folder}"

    name = saved({"text": ["a good film", "bad"], "label": [1, 0]}, ["no", "yes"], "one")
    found = load_labelled_sentences(name)
    assert isinstance(found, Splits)
    assert found.train.words == (("a", "good", "film"), ("bad",))
    assert found.test.class_names == ("no", "yes")
    rows = {
        "premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [2, -1, 0],
        "relatedness_score": [1.0, 2.0, 4.5],
    }  # fmt: skip
    pairs = load_labelled_pairs(saved(rows, list(ENTAILMENT), "two"))
    assert (pairs.train.premises, pairs.train.labels, pairs.train.relatedness) == (
        ("a", "c"),
        (2, 0),
        (1.0, 4.5),
    )
    assert "1 rows of hf:" in pairs.train.note
    assert "have no label and are left out" in pairs.train.note
    with pytest.raises(InputError, match="has the columns 'text', 'label'; expected one of 'premise'"):
        load_labelled_pairs(name)
    with pytest.raises(InputError, match="row 0 has nothing in 'text'; expected some words"):
        load_labelled_sentences(saved({"text": [" "], "label": [1]}, ["no", "yes"], "three"))


@NEEDS_DATA
def test_the_published_texts_are_as_published():
    for name, counts in {
        "trec": (5452, None, 500),
        "sst2": (6920, 872, 1821),
        "sst5": (8544, 1101, 2210),
    }.items():
        found = load_labelled_sentences(name)
        parts = (found.train, found.validation, found.test)
        assert tuple(part and len(part) for part in parts) == counts
        assert not any(part.note for part in parts if part)
    for name, counts in {"sick": (4500, 500, 4927), "cad-nli": (8330, 1000, 2000)}.items():
        found = load_labelled_pairs(name)
        assert tuple(len(part) for part in (found.train, found.validation, found.test)) == counts  # type: ignore[arg-type]
        assert not found.train.note
    sick = load_labelled_pairs("sick")
    assert [sick.train.labels.count(label) for label in range(3)] == [1299, 2536, 665]
