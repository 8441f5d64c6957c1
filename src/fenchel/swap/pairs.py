"""Pairs of sentences with the similarity that people gave them, from a table whose columns are parted by tabs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.errors import InputError
from fenchel.io.documents import check_text, file_lines, file_sha256, listed_names, readable_file
from fenchel.options import PairColumns

__all__ = ["PairColumns", "ScoredPairs", "read_pairs", "scored_pairs"]

_FEWEST = 3
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with scores.

    Attributes:
        description: Where they are from.
        sentences: Two sentences a pair.
        scores: One score a pair, higher for more similar.
        sha256: Of the file, None where there is none.
    """

    description: str
    sentences: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]
    sha256: str | None = None


def read_pairs(path: str | Path, columns: PairColumns, max_pairs: int | None = None) -> ScoredPairs:
    """Reads a table of pairs: UTF-8, columns parted by tabs, their names in the first line.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.
        columns: Names of the columns.
        max_pairs: Read only the first so many. Default: all.

    Returns:
        The pairs.

    Raises:
        InputError: If the file cannot be read, a column is missing, or a sentence or score is not one.
    """
    file = readable_file(checked("pairs", path))
    rows = _rows(file, columns)
    chosen = list(rows if max_pairs is None else islice(rows, max_pairs))
    return _checked(str(path), chosen, file_sha256(file))


def scored_pairs(pairs: Iterable[Sequence[object]]) -> ScoredPairs:
    """Takes pairs from Python.

    Args:
        pairs: (sentence, sentence, score) each.

    Returns:
        The pairs.

    Raises:
        InputError: If one is anything else, or there are too few.
    """
    found = []
    if not isinstance(pairs, Iterable) or isinstance(pairs, Mapping):
        raise InputError(f"pairs is {shown(pairs)}; expected a path, or pairs such as [('a', 'b', 3.5)].")
    for number, pair in enumerate(pairs, start=1):
        whole = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 3
        if not whole or not all(isinstance(sentence, str) and sentence.strip() for sentence in pair[:2]):
            raise InputError(
                f"pair {number} is {shown(pair)}; expected two sentences and a score, such as ('a', 'b', 3.5)."
            )
        check_text(f"{pair[0]} {pair[1]}", f"pair {number}")
        found.append((str(pair[0]), str(pair[1]), _score(str(pair[2]), f"pair {number}")))
    return _checked("Python pairs", found, None)


def _rows(path: Path, columns: PairColumns) -> Iterator[tuple[str, str, float]]:
    lines = file_lines(path, longest=_LONGEST_LINE)
    _, header, _ = next(lines)
    names = header.split("\t")
    wanted = {"first": columns.first, "second": columns.second, "score": columns.score}
    for name in wanted.values():
        if names.count(name) != 1:
            raise InputError(
                f"{path} has {names.count(name) or 'no'} column{'s' if names.count(name) else ''} {shown(name)}; its "
                f"first line names {listed_names(names)}, parted by tabs. Name the sentences' columns with "
                "--first-column and --second-column and the score's with --score-column."
            )
    places = {role: names.index(name) for role, name in wanted.items()}
    for number, line, _ in lines:
        if not line.strip():
            continue
        cells = line.split("\t")
        where = f"line {number} of {path}"
        if len(cells) != len(names):
            raise InputError(
                f"{where} has {len(cells)} columns, and the first line has {len(names)}. Mend the line."
            )
        first, second = cells[places["first"]].strip(), cells[places["second"]].strip()
        if not first or not second:
            raise InputError(f"{where} has an empty sentence. Mend or drop the line.")
        yield first, second, _score(cells[places["score"]], where)


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where} has the score {shown(text)}, which is not a number. Mend or drop it.")
    return score


def _checked(description: str, rows: list[tuple[str, str, float]], sha256: str | None) -> ScoredPairs:
    if len(rows) < _FEWEST:
        raise InputError(
            f"{description} has {len(rows)} pair{'' if len(rows) == 1 else 's'}; a rank correlation needs at least "
            f"{_FEWEST}. Give more."
        )
    scores = tuple(score for _, _, score in rows)
    if len(set(scores)) == 1:
        raise InputError(
            f"{description} gives every pair the score {scores[0]:g}, so there is no ranking to compare with."
        )
    return ScoredPairs(description, tuple((first, second) for first, second, _ in rows), scores, sha256)
