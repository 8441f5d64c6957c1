"""SICK's pairs of sentences from their files: entailment, and relatedness from 1 to 5."""

from __future__ import annotations

import math
from pathlib import Path

from fenchel.arguments import shown
from fenchel.data.labelled_pairs import ENTAILMENT, LEAST_RELATED, MOST_RELATED, LabelledPairs
from fenchel.data.splits import Splits
from fenchel.data.tab_separated import rows_of
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["SICK_FILES", "load_sick"]

SICK_FILES = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
"""What is trained on, validated on and tested on."""

_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")
_PARTS = ("train", "trial", "test")
_OFFICIAL = (4500, 500, 4927)
_PLACE = TextFolder("sick", "nli_sick", SICK_FILES, "https://zenodo.org/records/2787612")


def load_sick(path: str | Path | None = None, *, root: str | Path | None = None) -> Splits[LabelledPairs]:
    """Reads SICK (SemEval 2014, task 1) with its official split; its trial part is what is validated on.

    Args:
        path: The folder that holds the three files. Default: ``nli_sick`` under ``root``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Raises:
        InputError: If a file is missing, or a row has other columns, an empty sentence, an unknown label, or a
            relatedness that is out of range.
    """
    asked = _PLACE.name if path is None else str(path)
    folder = _PLACE.found(asked, root)
    parts = [
        _read(_PLACE.file(folder, file), asked, part, official)
        for file, part, official in zip(SICK_FILES, _PARTS, _OFFICIAL, strict=True)
    ]
    return Splits(*parts)


def _read(file: Path, asked: str, part: str, official: int) -> LabelledPairs:
    premises, hypotheses, labels, degrees = [], [], [], []
    for number, (_, premise, hypothesis, degree, label) in rows_of(_PLACE, file, _COLUMNS):
        if not premise.strip() or not hypothesis.strip():
            raise InputError(f"{file}, line {number} has an empty sentence; expected two of some words.")
        if label.lower() not in ENTAILMENT:
            raise InputError(
                f"{file}, line {number} has the label {shown(label)}; expected one of {', '.join(ENTAILMENT).upper()}."
            )
        premises.append(premise.strip())
        hypotheses.append(hypothesis.strip())
        labels.append(ENTAILMENT.index(label.lower()))
        degrees.append(_degree(degree, file, number))
    note = (
        "" if len(labels) == official else f"{len(labels):,} pairs in {part}, not the official {official:,}"
    )
    return LabelledPairs(
        tuple(premises), tuple(hypotheses), tuple(labels), ENTAILMENT, tuple(degrees), asked, note
    )


def _degree(text: str, file: Path, number: int) -> float:
    try:
        degree = float(text)
    except ValueError:
        degree = math.nan
    if not LEAST_RELATED <= degree <= MOST_RELATED:
        raise InputError(
            f"{file}, line {number} has the relatedness {shown(text)}; expected a number from {LEAST_RELATED:g} to "
            f"{MOST_RELATED:g}."
        )
    return degree
