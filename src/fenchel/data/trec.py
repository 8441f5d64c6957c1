"""TREC's questions from their files: one a line, with the class of its answer before it."""

from __future__ import annotations

from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.data.sentences import Sentences
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["load_sentences"]

_FILES = {"train": ("raw_TREC.train", "train_5500.label"), "test": ("raw_TREC.test", "TREC_10.label")}
_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_OFFICIAL = {"train": 5452, "test": 500}
_FOLDER = TextFolder(
    "trec",
    "text_classification",
    tuple(names[0] for names in _FILES.values()),
    "https://cogcomp.seas.upenn.edu/Data/QA/QC/",
)


def load_sentences(
    name_or_path: str | Path, *, root: str | Path | None = None
) -> tuple[Sentences, Sentences]:
    """Reads TREC's questions by their six coarse classes, in lower case. Nothing is downloaded.

    Each line of a file is ``CLASS:subclass``, a space, and a question whose words stand apart.

    Args:
        name_or_path: ``trec``, found in the folder ``text_classification`` under ``root``; or the path of a folder
            that holds ``raw_TREC.train`` and ``raw_TREC.test``, or ``train_5500.label`` and ``TREC_10.label`` as they
            are published.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Returns:
        The sentences to train on and those to test on.

    Raises:
        InputError: If the name is unknown, a file is missing, or a line is no question with a class.
    """
    name = str(checked("data_path", name_or_path, name="data"))
    folder = _FOLDER.found(name, root)
    return _read(folder, "train", name), _read(folder, "test", name)


def _read(folder: Path, split: str, name: str) -> Sentences:
    file = _FOLDER.file(folder, *_FILES[split])
    words: list[tuple[str, ...]] = []
    labels: list[int] = []
    # Latin-1, as the files to train on are published; it reads ASCII as well.
    for number, line in enumerate(_FOLDER.lines(file, encoding="latin-1"), 1):
        if not line.strip():
            continue
        named, _, question = line.partition(" ")
        label = named.partition(":")[0]
        if label not in _CLASSES or not question.split():
            raise InputError(
                f"{file}, line {number} is {shown(line)}; expected CLASS:subclass and a question, with a class of "
                f"{', '.join(_CLASSES)}."
            )
        words.append(tuple(question.lower().split()))
        labels.append(_CLASSES.index(label))
    if not words:
        raise InputError(
            f"{file} holds no questions; expected one a line. Fetch it again from {_FOLDER.page}."
        )
    official = _OFFICIAL[split]
    note = (
        ""
        if len(words) == official
        else f"{len(words):,} questions to {split} on, not the official {official:,}"
    )
    return Sentences(tuple(words), tuple(labels), _CLASSES, name, note)
