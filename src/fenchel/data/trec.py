"""TREC's questions from their files: one a line, with the class of its answer before it."""

from __future__ import annotations

import os
from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.data.file_content import file_content
from fenchel.data.sentences import Sentences
from fenchel.errors import InputError

__all__ = ["load_sentences"]

_NAME = "trec"
_FOLDER = "text_classification"
_ROOT_VARIABLE = "FENCHEL_DATA"
_FILES = {"train": ("raw_TREC.train", "train_5500.label"), "test": ("raw_TREC.test", "TREC_10.label")}
_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_OFFICIAL = {"train": 5452, "test": 500}
_PAGE = "https://cogcomp.seas.upenn.edu/Data/QA/QC/"


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
    folder = _folder(name, root)
    return _read(folder, "train", name), _read(folder, "test", name)


def _folder(name: str, root: str | Path | None) -> Path:
    if name != _NAME:
        path = Path(name).expanduser()
        if path.is_dir():
            return path
        raise InputError(
            f"{name!r} is neither a known set of sentences nor a folder that exists; expected {_NAME}, or the folder "
            f"that holds {' and '.join(names[0] for names in _FILES.values())}."
        )
    given = root if root is not None else os.environ.get(_ROOT_VARIABLE)
    wanted = f"{' and '.join(names[0] for names in _FILES.values())} in a folder {_FOLDER}"
    if not given:
        raise InputError(
            f"{name!r} is read from files, and neither {_ROOT_VARIABLE} nor a root says where they are. Put {wanted}, "
            f"and set {_ROOT_VARIABLE} to the folder that holds it. They are published at {_PAGE}."
        )
    folder = Path(given).expanduser() / _FOLDER
    if not folder.is_dir():
        raise InputError(
            f"{name!r} is not under {given}: {folder} is no folder. Put {wanted} there. They are published at {_PAGE}."
        )
    return folder


def _read(folder: Path, split: str, name: str) -> Sentences:
    file = next((folder / one for one in _FILES[split] if (folder / one).is_file()), None)
    if file is None:
        raise InputError(
            f"{folder} has neither {' nor '.join(_FILES[split])}, the questions to {split} on. They are published at "
            f"{_PAGE}."
        )
    words: list[tuple[str, ...]] = []
    labels: list[int] = []
    # Latin-1, as the files to train on are published; it reads ASCII as well.
    for number, line in enumerate(file_content(file).decode("latin-1").split("\n"), 1):
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
        raise InputError(f"{file} holds no questions; expected one a line. Fetch it again from {_PAGE}.")
    official = _OFFICIAL[split]
    note = (
        ""
        if len(words) == official
        else f"{len(words):,} questions to {split} on, not the official {official:,}"
    )
    return Sentences(tuple(words), tuple(labels), _CLASSES, name, note)
