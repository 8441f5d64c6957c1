"""Pairs of sentences as numbers, in batches of about the same length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import Subwords
from fenchel.models.translation import Translator

__all__ = ["NumberedPairs", "PairBatch"]

_POOL = 50


@dataclass(frozen=True)
class PairBatch:
    """A process's share of some pairs, on its device.

    Attributes:
        source: Numbers of words (b, n), each sentence with its end; 0 is padding.
        target: (b, m + 1), each sentence with its beginning and end; 0 is padding.
        references: The sentences of the target as they were given.
        words: How many words, ends among them, the targets of the whole step have in all processes.
    """

    source: Tensor
    target: Tensor
    references: tuple[str, ...]
    words: int

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return len(self.source)

    def taken(self, places: Tensor) -> PairBatch:
        """Some of them."""
        references = tuple(self.references[place] for place in places.tolist())
        return PairBatch(self.source[places], self.target[places], references, self.words)


@dataclass(frozen=True, eq=False)
class NumberedPairs:
    """Pairs of a split as numbers.

    Attributes:
        sources: Numbers of the words of each sentence, its end last.
        targets: Likewise, its beginning first.
        references: The sentences of the target as they were given.
    """

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    references: Sequence[str]

    @classmethod
    def of(
        cls, first: Sequence[str], second: Sequence[str], tokenizers: tuple[Subwords, Subwords]
    ) -> NumberedPairs:
        """The pairs of sentences.

        Args:
            first: Of the source.
            second: Of the target.
            tokenizers: Of either.
        """
        begin, end = Translator.BEGIN, Translator.END
        return cls(
            [[*numbers, end] for numbers in tokenizers[0].encoded(first)],
            [[begin, *numbers, end] for numbers in tokenizers[1].encoded(second)],
            second,
        )

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.sources)

    def no_longer_than(self, longest: int) -> NumberedPairs:
        """Those of which both sentences have at most so many words, ends not counted."""
        kept = [
            place
            for place, (source, target) in enumerate(zip(self.sources, self.targets, strict=True))
            if len(source) - 1 <= longest and len(target) - 2 <= longest
        ]
        return NumberedPairs(*([side[place] for place in kept] for side in self._sides))

    @property
    def length_ratio(self) -> float:
        """Words of the source for each of the target, ends counted in both."""
        return sum(map(len, self.sources)) / sum(len(target) - 1 for target in self.targets)

    def order(self, epoch: int, *, size: int, seed: int) -> list[list[int]]:
        """The batches of an epoch: at random, but of about the same length; what fills none is left out.

        Args:
            epoch: From 0.
            size: Of a batch.
            seed: Of the training.
        """
        generator = seeded_generator("pairs", seed, epoch)
        drawn = torch.randperm(len(self), generator=generator)[: len(self) // size * size].tolist()
        batches: list[list[int]] = []
        for begin in range(0, len(drawn), _POOL * size):
            pool = sorted(drawn[begin : begin + _POOL * size], key=self._lengths)
            batches += [pool[first : first + size] for first in range(0, len(pool), size)]
        return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]

    def batch(self, places: Sequence[int], share: slice, device: torch.device) -> PairBatch:
        """Some pairs.

        Args:
            places: Those of a whole step.
            share: Which of them are this process's.
            device: Where to.
        """
        words = sum(len(self.targets[place]) - 1 for place in places)
        mine = places[share]
        source, target = (
            Subwords.padded([side[place] for place in mine]).to(device)
            for side in (self.sources, self.targets)
        )
        return PairBatch(source, target, tuple(self.references[place] for place in mine), words)

    def in_order_of_length(self, size: int, share: slice, device: torch.device) -> Iterator[PairBatch]:
        """This process's share of all pairs, the short ones first.

        Args:
            size: Of a batch.
            share: Which of all are this process's.
            device: Where to.
        """
        mine = sorted(range(len(self)), key=self._lengths)[share]
        for begin in range(0, len(mine), size):
            yield self.batch(mine[begin : begin + size], slice(None), device)

    def _lengths(self, place: int) -> tuple[int, int]:
        return len(self.targets[place]), len(self.sources[place])

    @property
    def _sides(self) -> tuple[Sequence, Sequence, Sequence]:
        return self.sources, self.targets, self.references
