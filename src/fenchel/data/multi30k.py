"""Multi30k's captions in two languages from their files, or any folder of the same form."""

from __future__ import annotations

from pathlib import Path

from fenchel.arguments import checked
from fenchel.data.hub_rows import HUB_PREFIX
from fenchel.data.parallel import ParallelCorpus, SentencePairs
from fenchel.data.parallel_hub import hub_parallel
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["load_pairs"]

_NAME = "multi30k"
_LANGUAGES = ("en", "de")
_OFFICIAL = {
    "train": 29_000,
    "val": 1_014,
    "test_2016_flickr": 1_000,
    "test_2017_flickr": 1_000,
    "test_2017_mscoco": 461,
    "test_2018_flickr": 1_071,
}
_FOLDER = TextFolder(
    _NAME,
    _NAME,
    (
        "train.en.gz",
        "train.de.gz",
        "val.en.gz",
        "val.de.gz",
        "test_2016_flickr.en.gz",
        "test_2016_flickr.de.gz",
    ),
    "https://github.com/multi30k/dataset/tree/master/data/task1/raw",
)


def load_pairs(name_or_path: str | Path, *, root: str | Path | None = None) -> ParallelCorpus:
    """Reads sentences in two languages. Nothing is downloaded, but for a data set of the hub.

    Line i of a file is the translation of line i of the file of the other language. Pairs of which a side is empty are
    left out, which the note says.

    Args:
        name_or_path: ``multi30k``, found in the folder of that name under ``root``; the path of a folder that holds
            ``train``, ``val`` and at least one ``test`` or ``test_...`` with the endings of two languages, such as
            ``train.en`` and ``train.de``, each packed (``.gz``) or not; or ``hf:NAME[:CONFIG]``, a data set of the
            ``datasets`` library with a column for each language.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Returns:
        All splits, with English before German where these are the languages.

    Raises:
        InputError: If the name is unknown, a file is missing or in another encoding, or files of the two languages
            differ in their number of lines.
    """
    name = str(checked("data", str(name_or_path)))
    if name.startswith(HUB_PREFIX):
        return hub_parallel(name)
    folder = _FOLDER.found(name, root)
    languages = _languages(folder)
    official = name == _NAME

    def read(split: str) -> SentencePairs:
        return _read(folder, split, languages, name, official=official)

    tests = {test: read(test) for test in _tests(folder, languages)}
    return ParallelCorpus(languages, read("train"), read("val"), tests, name)


def _endings(folder: Path, split: str) -> set[str]:
    """The languages in which a folder has a split."""
    names = (path.name.removesuffix(".gz") for path in folder.glob(f"{split}.*"))
    return {name[len(split) + 1 :] for name in names if "." not in name[len(split) + 1 :]} - {""}


def _languages(folder: Path) -> tuple[str, str]:
    found = _endings(folder, "train")
    if set(_LANGUAGES) <= found:
        return _LANGUAGES
    if len(found) != 2:
        there = f"has train in {', '.join(sorted(found))}" if found else "has no train file"
        raise InputError(
            f"{folder} {there}; expected a file for each of two languages, such as train.en and train.de (or .gz). "
            f"Those of {_NAME} are published at {_FOLDER.page}."
        )
    first, second = sorted(found)
    return first, second


def _tests(folder: Path, languages: tuple[str, str]) -> list[str]:
    names = {path.name.partition(".")[0] for path in folder.glob("test*")}
    found = [
        name
        for name in sorted(names)
        if (name == "test" or name.startswith("test_")) and set(languages) & _endings(folder, name)
    ]
    if not found:
        raise InputError(
            f"{folder} has no test_2016_flickr.{languages[0]} and no other file to test on, whose name begins with "
            f"test; expected at least one for each of {languages[0]} and {languages[1]} (or .gz). Those of {_NAME} are "
            f"published at {_FOLDER.page}."
        )
    return found


def _read(
    folder: Path, split: str, languages: tuple[str, str], name: str, *, official: bool
) -> SentencePairs:
    files = [_FOLDER.file(folder, f"{split}.{language}.gz", f"{split}.{language}") for language in languages]
    first, second = (_FOLDER.lines(file) for file in files)
    if len(first) != len(second):
        raise InputError(
            f"{files[0]} has {len(first):,} lines and {files[1]} {len(second):,}; expected as many, as line i of one "
            "translates line i of the other. Give the files as they were published."
        )
    kept = [pair for pair in zip(first, second, strict=True) if all(side.strip() for side in pair)]
    if not kept:
        raise InputError(f"{files[0]} and {files[1]} hold no sentences; expected one a line.")
    notes = []
    if len(kept) < len(first):
        notes.append(f"{len(first) - len(kept):,} pairs of {split} with an empty line left out")
    if official and len(kept) != _OFFICIAL.get(split, len(kept)):
        notes.append(f"{len(kept):,} pairs of {split}, not the official {_OFFICIAL[split]:,}")
    one, other = zip(*kept, strict=True)
    return SentencePairs(one, other, f"{name}, {split}", "; ".join(notes))
