"""The words that a model knows, by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fenchel.errors import InputError

__all__ = ["PADDING", "UNKNOWN", "Vocabulary"]

PADDING = 0
"""The number of what stands for no word."""

UNKNOWN = 1
"""The number of what stands for every word that is not known."""


@dataclass(frozen=True)
class Vocabulary:
    """Words and their numbers, from 2 on.

    Attributes:
        words: Each once, the most frequent first.

    Raises:
        InputError: If there are none, or one is there twice.

    Example:
        >>> vocabulary = Vocabulary.of([("who", "is", "who"), ("what", "is", "it")], least=2)
        >>> vocabulary.words
        ('is', 'who')
        >>> vocabulary.numbers([("who", "is", "he"), ("it",)], longest=5).tolist()
        [[3, 2, 1], [1, 0, 0]]
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words:
            raise InputError(
                "the vocabulary is empty: no word is as frequent as asked for. Give more sentences."
            )
        if len(self._places) != len(self.words):
            raise InputError("the vocabulary has a word twice; expected each once.")

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], *, least: int) -> Vocabulary:
        """The words of some sentences.

        Args:
            sentences: Words of each; those to train on, and no others.
            least: How often a word has to be there to be known.
        """
        counts = Counter(word for words in sentences for word in words)
        known = [word for word, count in counts.items() if count >= least]
        return cls(tuple(sorted(known, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        """How many numbers there are, those of padding and of unknown words among them."""
        return len(self.words) + 2

    def numbers(self, sentences: Sequence[Sequence[str]], *, longest: int) -> Tensor:
        """The numbers of the words of sentences.

        Args:
            sentences: N of them.
            longest: Sentences are cut after so many words.

        Returns:
            (N, n), int64, n the length of the longest; shorter ones end in ``PADDING``.
        """
        rows = [[self._places.get(word, UNKNOWN) for word in words[:longest]] for words in sentences]
        width = max(map(len, rows), default=0)
        return torch.tensor([row + [PADDING] * (width - len(row)) for row in rows], dtype=torch.int64)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words, 2)}
