"""Sentences in two languages of the ``datasets`` library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fenchel.arguments import shown
from fenchel.data.hub_rows import HUB_PREFIX, hub_name, hub_splits
from fenchel.data.parallel import ParallelCorpus, SentencePairs
from fenchel.errors import InputError

__all__ = ["hub_parallel"]

_VALIDATION = ("validation", "val", "valid", "dev")
_NESTED = "translation"
_USUAL = ("en", "de")
_LONGEST_CODE = 3


def hub_parallel(name: str) -> ParallelCorpus:
    """Sentences with a column for each of two languages, such as ``en`` and ``de``, or ``translation`` with both.

    Args:
        name: ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:FOLDER``.

    Returns:
        Its splits ``train``, ``validation`` (or ``val``, ``valid``, ``dev``), and all whose names begin with ``test``.

    Raises:
        InputError: If it cannot be opened, has no such columns or splits, or a row holds no text.
        MissingExtraError: If ``datasets`` is not installed.
    """
    path, config = hub_name(name)
    splits = hub_splits(path, config)
    validation = next((split for split in _VALIDATION if split in splits), None)
    tests = [split for split in splits if split.startswith("test")]
    if "train" not in splits or validation is None or not tests:
        raise InputError(
            f"{HUB_PREFIX}{path} has the splits {', '.join(splits)}; expected train, validation and test. Choose "
            "another dataset."
        )
    languages = _languages(splits["train"], f"{HUB_PREFIX}{path}")

    def read(split: str) -> SentencePairs:
        return _read(splits[split], languages, f"{HUB_PREFIX}{path}, {split}")

    return ParallelCorpus(languages, read("train"), read(validation), {one: read(one) for one in tests}, name)


def _languages(rows: Any, where: str) -> tuple[str, str]:
    columns = list(rows.features)
    if _NESTED in columns and len(rows):
        codes = sorted(rows[0][_NESTED])
    else:
        codes = sorted(
            column
            for column, kind in rows.features.items()
            if getattr(kind, "dtype", None) in ("string", "large_string") and len(column) <= _LONGEST_CODE
        )
    if set(_USUAL) <= set(codes):
        return _USUAL
    if len(codes) != 2:
        raise InputError(
            f"{where} has the columns {', '.join(columns)}; expected one for each of two languages, such as en and de, "
            f"or {_NESTED} with both. Choose another dataset."
        )
    first, second = codes
    return first, second


def _read(rows: Any, languages: tuple[str, str], where: str) -> SentencePairs:
    sides: list[Sequence[Any]]
    if _NESTED in rows.features:
        nested = rows[_NESTED]
        sides = [[one.get(language) for one in nested] for language in languages]
    else:
        missing = [language for language in languages if language not in rows.features]
        if missing:
            raise InputError(
                f"{where} has no column {missing[0]!r}, which train has. Choose another dataset."
            )
        sides = [rows[language] for language in languages]
    for place, pair in enumerate(zip(*sides, strict=True)):
        for language, text in zip(languages, pair, strict=True):
            if not isinstance(text, str):
                raise InputError(f"{where}: {language!r} of row {place} is {shown(text)}; expected a text.")
    kept = [pair for pair in zip(*sides, strict=True) if all(text.strip() for text in pair)]
    if not kept:
        raise InputError(f"{where} holds no sentences. Choose another dataset.")
    left_out = len(sides[0]) - len(kept)
    note = f"{left_out:,} pairs of {where} with an empty sentence left out" if left_out else ""
    # On one line each, as in files.
    first, second = zip(
        *((" ".join(one.split("\n")), " ".join(other.split("\n"))) for one, other in kept), strict=True
    )
    return SentencePairs(first, second, where, note)
