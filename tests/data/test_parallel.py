"""Sentences in two languages: read as they stand in their files, and what is missing or wrong is said."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fenchel.data import ParallelCorpus, SentencePairs, load_pairs
from fenchel.errors import InputError

SPLITS = {
    "train": [("A dog barks.", "Ein Hund bellt."), ("Two cats.", "Zwei Katzen."), ("Snow.", "Schnee.")],
    "val": [("A cat.", "Eine Katze.")],
    "test_2016_flickr": [("A dog.", "Ein Hund.")],
    "test_2017_mscoco": [("A bird.", "Ein Vogel."), ("Birds.", "Vögel.")],
}


def written(
    folder: Path,
    splits: Mapping[str, Sequence[tuple[str, str]]] = SPLITS,
    *,
    languages: tuple[str, str] = ("en", "de"),
    packed: bool = False,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        for side, language in enumerate(languages):
            content = "".join(f"{pair[side]}\n" for pair in pairs).encode()
            path = folder / f"{split}.{language}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_is_read(tmp_path, packed):
    corpus = load_pairs(written(tmp_path, packed=packed))
    assert corpus.languages == ("en", "de")
    assert list(zip(corpus.train.first, corpus.train.second, strict=True)) == SPLITS["train"]
    assert corpus.validation.first == ("A cat.",)
    assert list(corpus.tests) == ["test_2016_flickr", "test_2017_mscoco"]
    assert corpus.test("test_2017_mscoco").second == ("Ein Vogel.", "Vögel.")
    assert corpus.train.note == ""
    assert corpus.train.digest != corpus.train.turned().digest


def test_it_is_turned_and_cut(tmp_path):
    corpus = load_pairs(written(tmp_path))
    turned = corpus.towards("de-en")
    assert turned.languages == ("de", "en")
    assert turned.train.first == corpus.train.second
    assert turned.test("test_2016_flickr").second == ("A dog.",)
    assert corpus.towards("en-de") is corpus
    assert corpus.train.taken(2).second == ("Ein Hund bellt.", "Zwei Katzen.")
    with pytest.raises(InputError, match=r"direction is 'en-fr' .* in en and de; expected en-de or de-en"):
        corpus.towards("en-fr")
    with pytest.raises(
        InputError, match=r"test is 'test_2018_flickr', .*one of test_2016_flickr, test_2017_mscoco"
    ):
        corpus.test("test_2018_flickr")


def test_other_languages_are_found_by_the_endings(tmp_path):
    splits = {name: SPLITS[name] for name in ("train", "val")} | {"test": SPLITS["val"]}
    corpus = load_pairs(written(tmp_path, splits, languages=("fr", "cs")))
    assert corpus.directions == ("cs-fr", "fr-cs")
    assert corpus.test("test").second == ("A cat.",)


def test_the_name_is_found_under_the_root(tmp_path, monkeypatch):
    written(tmp_path / "multi30k", packed=True)
    corpus = load_pairs("multi30k", root=tmp_path)
    assert corpus.train.note == "3 pairs of train, not the official 29,000"
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    with pytest.raises(
        InputError, match="'multi30k' is read from files, and neither FENCHEL_DATA nor a root"
    ):
        load_pairs("multi30k")
    with pytest.raises(InputError, match="'europarl' is neither a known set of texts nor a folder"):
        load_pairs("europarl")


def saved(folder: Path, rows: Mapping[str, Mapping[str, Sequence[object]]]) -> str:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    splits = {split: datasets.Dataset.from_dict(dict(columns)) for split, columns in rows.items()}
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return f"hf:{folder}"


def test_a_data_set_of_the_hub_is_read(tmp_path):
    rows = {
        "train": {"de": ["Ein Hund.", "", "Schnee."], "en": ["A dog.", "Empty.", "Snow.\nMore."]},
        "validation": {"de": ["Eine Katze."], "en": ["A cat."]},
        "test": {"de": ["Ein Vogel."], "en": ["A bird."]},
    }
    corpus = load_pairs(saved(tmp_path / "columns", rows))
    assert corpus.languages == ("en", "de")
    assert corpus.train.first == ("A dog.", "Snow. More.")
    assert "1 pairs of" in corpus.train.note
    assert corpus.test("test").second == ("Ein Vogel.",)
    nested = {
        split: {"translation": [{"fr": one, "cs": other} for one, other in zip(*sides.values(), strict=True)]}
        for split, sides in rows.items()
    }
    corpus = load_pairs(saved(tmp_path / "nested", nested))
    assert corpus.directions == ("cs-fr", "fr-cs")
    assert corpus.validation.second == ("Eine Katze.",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test": None}, "has the splits train, validation; expected train, validation and test"),
        ({"train": {"text": ["one"]}}, "has the columns text; expected one for each of two languages"),
        ({"test": {"en": ["A bird."]}}, "test has no column 'de', which train has"),
        ({"test": {"en": ["A bird."], "de": [None]}}, "test: 'de' of row 0 is None; expected a text"),
        ({"test": {"en": [" "], "de": [" "]}}, "test holds no sentences"),
    ],
)
def test_a_data_set_of_another_form_is_refused(tmp_path, change, said):
    one = {"en": ["A dog."], "de": ["Ein Hund."]}
    rows = {"train": one, "validation": one, "test": one, **change}
    name = saved(tmp_path / "set", {split: columns for split, columns in rows.items() if columns is not None})
    with pytest.raises(InputError, match=said):
        load_pairs(name)


def test_unequal_files_are_refused(tmp_path):
    written(tmp_path)
    (tmp_path / "val.de").write_text("Eine Katze.\nUnd noch eine.\n")
    with pytest.raises(InputError, match=r"val\.en has 1 lines and .*val\.de 2; expected as many"):
        load_pairs(tmp_path)


def test_another_encoding_is_refused(tmp_path):
    written(tmp_path)
    (tmp_path / "test_2017_mscoco.de").write_bytes("Ein Vogel.\nVögel.\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"test_2017_mscoco\.de, line 2 is not UTF-8: byte 0xf6"):
        load_pairs(tmp_path)


def test_empty_lines_are_left_out_and_counted(tmp_path):
    train = [*SPLITS["train"], ("", "Leer."), ("Blank.", "  ")]
    corpus = load_pairs(written(tmp_path, {**SPLITS, "train": train}))
    assert len(corpus.train) == 3
    assert corpus.train.note == "2 pairs of train with an empty line left out"
    with pytest.raises(InputError, match=r"val\.en and .*val\.de hold no sentences"):
        load_pairs(written(tmp_path, {**SPLITS, "val": [("", "")]}))


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(InputError, match="has no train file; expected a file for each of two languages"):
        load_pairs(tmp_path)
    written(tmp_path, {"train": SPLITS["train"]})
    with pytest.raises(InputError, match=r"has no test_2016_flickr\.en and no other file to test on"):
        load_pairs(tmp_path)
    written(tmp_path, {"test": SPLITS["val"]})
    with pytest.raises(InputError, match=r"has no val\.en\.gz and no val\.en\."):
        load_pairs(tmp_path)
    written(tmp_path, {"val": SPLITS["val"]})
    (tmp_path / "train.de").unlink()
    with pytest.raises(InputError, match="has train in en; expected a file for each of two languages"):
        load_pairs(tmp_path)


def test_pairs_are_checked():
    with pytest.raises(InputError, match="2 sentences in one language and 1 in the other"):
        SentencePairs(("a", "b"), ("c",), "mine")
    with pytest.raises(InputError, match="pair 1 has the sentence ' '"):
        SentencePairs(("a", " "), ("c", "d"), "mine")
    with pytest.raises(InputError, match="no pairs of sentences"):
        SentencePairs((), (), "mine")
    with pytest.raises(InputError, match="first is 'ab'; expected a tuple"):
        SentencePairs("ab", ("c", "d"), "mine")  # pyright: ignore[reportArgumentType]
    pairs = SentencePairs(("a",), ("b",), "mine")
    with pytest.raises(InputError, match="languages is"):
        ParallelCorpus(("en", "en"), pairs, pairs, {"test": pairs}, "mine")
    with pytest.raises(InputError, match="no set of sentences to test on"):
        ParallelCorpus(("en", "de"), pairs, pairs, {}, "mine")


@pytest.mark.skipif("FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA names no folder of data")
def test_the_published_files_have_their_sizes():
    corpus = load_pairs("multi30k")
    sizes = {name: len(pairs) for name, pairs in corpus.tests.items()}
    assert (len(corpus.train), len(corpus.validation)) == (29_000, 1_014)
    assert sizes == {
        "test_2016_flickr": 1_000,
        "test_2017_flickr": 1_000,
        "test_2017_mscoco": 461,
        "test_2018_flickr": 1_071,
    }
    assert corpus.train.first[0] == "Two young, White males are outside near many bushes."
    assert corpus.train.second[0].startswith("Zwei junge weiße Männer")
    assert all(not pairs.note for pairs in (corpus.train, corpus.validation, *corpus.tests.values()))
