"""Rows of a batch of blanks: passages between special tokens, corrupted, with what is to be filled in."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fenchel.data.corruption import Corruption
from fenchel.data.passages import Passage
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import Subwords

__all__ = ["SPECIAL", "Batch", "Draws", "Row", "Rows"]

SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
"""Tokens that every tokenizer of a training has, after those of padding and of the unknown."""

_OTHER = 0.5


@dataclass(frozen=True)
class Batch:
    """A process's share of some rows, on its device.

    Attributes:
        numbers: Of the tokens (b, n), 0 for padding.
        segments: Of each token (b, n).
        positions: Of each token (b, n); None where they never begin again.
        languages: Of each token (b, n).
        places: Where something is to be filled in, bool (b, n).
        targets: What, (k,) for the k places, row by row.
        classes: Whether another second part follows (b,): 0 for the one that does, 1 for another.
        total: How many targets all processes have together.
    """

    numbers: Tensor
    segments: Tensor
    positions: Tensor | None
    languages: Tensor
    places: Tensor
    targets: Tensor
    classes: Tensor
    total: int

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.numbers)

    def taken(self, rows: Tensor) -> Batch:
        """Some of the rows."""
        wanted = torch.zeros(self.count, dtype=torch.bool, device=self.numbers.device)
        wanted[rows] = True
        rows = wanted.nonzero().squeeze(1)
        targets = self.targets[wanted[self.rows]]
        positions = None if self.positions is None else self.positions[rows]
        same = ("numbers", "segments", "languages", "places", "classes")
        parts = {name: getattr(self, name)[rows] for name in same}
        return Batch(**parts, positions=positions, targets=targets, total=len(targets))

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What a model takes of it, by name."""
        names = ("numbers", "segments", "languages", "places")
        found = {name: getattr(self, name) for name in names}
        return found if self.positions is None else {**found, "positions": self.positions}

    @property
    def rows(self) -> Tensor:
        """The row of each target (k,)."""
        return self.places.nonzero()[:, 0]

    def of_targets(self, words: Tensor) -> Tensor:
        """What a model says of the words of every row (b, m, vocabulary), target by target (k, vocabulary)."""
        counts = self.places.sum(1, keepdim=True).to(words.device)
        return words[torch.arange(words.shape[1], device=words.device) < counts]


class Row(NamedTuple):
    """One row, as lists; see ``Batch``."""

    numbers: list[int]
    segments: list[int]
    positions: list[int]
    languages: list[int]
    places: list[int]
    targets: list[int]
    other: int


class Draws(NamedTuple):
    """What is drawn for rows follows from this and from the keys of passages.

    Attributes:
        corruption: Of their tokens.
        purpose: ``train``, or the split.
        numbers: Such as seed and epoch.
    """

    corruption: Corruption
    purpose: str
    numbers: tuple[int, ...]


class Rows:
    """Makes rows of the passages of a split.

    Args:
        passages: All of them.
        tokenizer: With ``SPECIAL``.
        objective: One of ``OBJECTIVES``.
        longest: How many tokens the two parts of a row have together at most, where the second may be exchanged.
    """

    def __init__(
        self, passages: Sequence[Passage], tokenizer: Subwords, objective: str, longest: int
    ) -> None:
        self.passages, self.objective, self.longest = passages, objective, longest
        self._first, self._end = map(tokenizer.number, SPECIAL[:2])
        shortest: dict[int, int] = {}
        for one in passages:
            if one.second:
                shortest[one.article] = min(len(one.second), shortest.get(one.article, longest))
        self._shortest = heapq.nsmallest(2, shortest.items(), key=operator.itemgetter(1))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.passages)

    def row(self, index: int, draws: Draws | None) -> Row:
        """The row of a passage; as it is, where nothing is drawn."""
        passage = self.passages[index]
        other = 0
        if self.objective == "mlm+nsp" and draws is not None:
            generator = seeded_generator(f"next {draws.purpose}", *draws.numbers, passage.keys[0])
            if float(torch.rand((), generator=generator)) < _OTHER and self._another_fits(passage):
                passage, other = self._with_another(passage, generator), 1
        row = Row([self._first], [0], [0], [passage.languages[0]], [], [], other)
        apart = self.objective in ("mlm+nsp", "tlm")
        for number, part in enumerate((passage.first, passage.second)):
            if not part:
                continue
            if number and not apart and passage.second:
                _drop_end(row)
            segment = number if self.objective == "mlm+nsp" else 0
            restarts = number and self.objective == "tlm"
            # As in the first sentence, whose token before the words has place 0.
            begin = 1 if restarts else row.positions[-1] + 1
            self._extend(row, part, passage.keys[number], draws)
            new = len(row.numbers) - len(row.segments)
            row.segments.extend([segment] * new)
            row.positions.extend(range(begin, begin + new))
            row.languages.extend([passage.languages[number]] * new)
        return row

    def _extend(self, row: Row, part: Sequence[int], key: int, draws: Draws | None) -> None:
        """Adds a part and the token that ends it, with what is to be filled in."""
        begin = len(row.numbers)
        if draws is None:
            row.numbers.extend([*part, self._end])
            return
        corrupted, chosen = draws.corruption.applied(part, f"corruption {draws.purpose}", *draws.numbers, key)
        if self.objective == "causal":
            corrupted, begin_of_places = list(part), begin - 1
            if draws.purpose == "train":
                known = draws.corruption.known
                chosen = [place for place, token in enumerate(part) if token >= known]
        else:
            begin_of_places = begin
        row.places.extend(begin_of_places + place for place in chosen)
        row.targets.extend(part[place] for place in chosen)
        row.numbers.extend([*corrupted, self._end])

    def _another_fits(self, passage: Passage) -> bool:
        room = self.longest - len(passage.first)
        return any(article != passage.article and length <= room for article, length in self._shortest)

    def _with_another(self, passage: Passage, generator: torch.Generator) -> Passage:
        """The first part with the second of a passage of another article, one that fits.

        Drawn until it does and never cut: parts that end in the middle of a sentence would tell which were exchanged.
        """
        room = self.longest - len(passage.first)
        while True:
            drawn = int(torch.randint(len(self.passages), (), generator=generator))
            found = self.passages[drawn]
            if found.article != passage.article and 0 < len(found.second) <= room:
                return passage._replace(second=found.second, keys=(passage.keys[0], found.keys[1]))

    def batch(self, indices: Sequence[int], mine: slice, draws: Draws | None, device: torch.device) -> Batch:
        """A share of some rows.

        Args:
            indices: Of the rows of all processes.
            mine: Which of them are this process's.
            draws: What is drawn for them; None leaves them as they are.
            device: Where they are to be.
        """
        own = [self.row(index, draws) for index in indices[mine]]
        rows = own if len(own) == len(indices) else [self.row(index, draws) for index in indices]
        numbers, segments, positions, languages = (
            Subwords.padded(values).to(device)
            for values in zip(
                *((row.numbers, row.segments, row.positions, row.languages) for row in own), strict=True
            )
        )
        places = torch.zeros(numbers.shape, dtype=torch.bool)
        for number, row in enumerate(own):
            places[number, row.places] = True
        targets, classes = (
            torch.tensor(values, dtype=torch.int64, device=device)
            for values in ([one for row in own for one in row.targets], [row.other for row in own])
        )
        total = sum(len(row.targets) for row in rows)
        restarted = positions if self.objective == "tlm" else None
        return Batch(numbers, segments, restarted, languages, places.to(device), targets, classes, total)


def _drop_end(row: Row) -> None:
    """Without the token that ended the part before."""
    for values in (row.numbers, row.segments, row.positions, row.languages):
        values.pop()
