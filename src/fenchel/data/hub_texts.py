"""Labelled sentences and pairs of sentences of the ``datasets`` library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fenchel.arguments import shown
from fenchel.data.hub_rows import HUB_PREFIX, hub_name, hub_splits
from fenchel.data.labelled_pairs import LabelledPairs
from fenchel.data.sentences import Sentences
from fenchel.data.splits import Splits
from fenchel.errors import InputError

__all__ = ["hub_pairs", "hub_sentences"]

_SENTENCES = ("sentence", "text", "question")
_PREMISES = ("premise", "sentence1", "sentence_A", "text1")
_HYPOTHESES = ("hypothesis", "sentence2", "sentence_B", "text2")
_LABELS = ("label", "labels", "coarse_label", "entailment_judgment")
_DEGREES = ("relatedness_score", "relatedness")
_VALIDATION = ("validation", "dev", "valid", "trial")
_UNLABELLED = -1

PartT = TypeVar("PartT", Sentences, LabelledPairs)


def hub_sentences(name: str) -> Splits[Sentences]:
    """Sentences with a class: columns ``sentence``, ``text`` or ``question``, and ``label`` or ``coarse_label``.

    Args:
        name: ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:FOLDER``.

    Raises:
        InputError: If it cannot be opened, has no such columns, or a row is empty or has a label out of range.
        MissingExtraError: If ``datasets`` is not installed.
    """

    def made(rows: Any, where: str) -> Sentences:
        text, label = _column(rows, _SENTENCES, where), _column(rows, _LABELS, where)
        (texts,), labels, names, note = _kept(rows, (text,), label, where)
        return Sentences(tuple(tuple(one.split()) for one in texts), labels, names, name, note)

    return _parts(name, made)


def hub_pairs(name: str) -> Splits[LabelledPairs]:
    """Pairs with a class: columns such as ``premise``, ``hypothesis`` and ``label``; and ``relatedness_score``, if any.

    Args:
        name: ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:FOLDER``.

    Raises:
        InputError: If it cannot be opened, has no such columns, or a row is empty or has a label out of range.
        MissingExtraError: If ``datasets`` is not installed.
    """

    def made(rows: Any, where: str) -> LabelledPairs:
        pair = (_column(rows, _PREMISES, where), _column(rows, _HYPOTHESES, where))
        label = _column(rows, _LABELS, where)
        degree = next((column for column in _DEGREES if column in rows.features), None)
        columns = pair if degree is None else (*pair, degree)
        kept, labels, names, note = _kept(rows, columns, label, where)
        degrees = None if degree is None else tuple(map(float, kept[2]))
        return LabelledPairs(tuple(kept[0]), tuple(kept[1]), labels, names, degrees, name, note)

    return _parts(name, made)


def _parts(name: str, made: Callable[[Any, str], PartT]) -> Splits[PartT]:
    path, config = hub_name(name)
    splits = hub_splits(path, config)
    for needed in ("train", "test"):
        if needed not in splits:
            raise InputError(
                f"dataset {path!r} has no split {needed!r}; it has {', '.join(map(repr, splits))}. Choose another one."
            )
    watched = next((part for part in _VALIDATION if part in splits), None)

    def part(split: str) -> PartT:
        return made(splits[split], f"{HUB_PREFIX}{path}, split {split!r}")

    return Splits(part("train"), None if watched is None else part(watched), part("test"))


def _column(rows: Any, names: Sequence[str], where: str) -> str:
    features: Mapping[str, Any] = rows.features
    found = next((name for name in names if name in features), None)
    if found is None:
        raise InputError(
            f"{where} has the columns {', '.join(map(repr, features))}; expected one of {', '.join(map(repr, names))}."
        )
    return found


def _kept(
    rows: Any, columns: Sequence[str], label: str, where: str
) -> tuple[list[list[Any]], tuple[int, ...], tuple[str, ...], str]:
    """What stands in some columns, with labels and names of classes; rows that say they have no label are left out."""
    names = getattr(rows.features[label], "names", None)
    if names is None:
        raise InputError(
            f"{where}: the column {label!r} names no classes (ClassLabel). Choose another dataset."
        )
    kept: list[list[Any]] = [[] for _ in columns]
    labels: list[int] = []
    for place, row in enumerate(rows):
        if row[label] == _UNLABELLED:
            continue
        if row[label] is None or not 0 <= row[label] < len(names):
            raise InputError(
                f"{where}: row {place} has the label {shown(row[label])}; expected 0 to {len(names) - 1}, or "
                f"{_UNLABELLED} for none."
            )
        for one, column in zip(kept, columns, strict=True):
            if row[column] is None or not str(row[column]).strip():
                raise InputError(f"{where}: row {place} has nothing in {column!r}; expected some words.")
            one.append(row[column])
        labels.append(row[label])
    if not labels:
        raise InputError(f"{where} has no rows with a label. Choose another dataset.")
    left = len(rows) - len(labels)
    note = f"{left:,} rows of {where} have no label and are left out" if left else ""
    return kept, tuple(labels), tuple(map(str, names)), note
