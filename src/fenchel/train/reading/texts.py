"""Sentences as a model of reading takes them: numbers of their words, or vectors of a frozen encoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fenchel.data.subwords import Subwords
from fenchel.errors import InputError

__all__ = ["Texts", "Tokens", "Words", "cut_to", "learned_words"]

Tokens = list[list[int]]


class Words(NamedTuple):
    """Some sentences side by side.

    Attributes:
        words: Numbers of words (b, n), 0 for padding; or vectors (b, n, width).
        padding: Of vectors, True where there is none, bool (b, n); None where words have numbers.
    """

    words: Tensor
    padding: Tensor | None

    def taken(self, places: Tensor) -> Words:
        """Some of them."""
        return Words(self.words[places], None if self.padding is None else self.padding[places])

    def to(self, device: torch.device) -> Words:
        """The same on a device."""
        return Words(self.words.to(device), None if self.padding is None else self.padding.to(device))


class Texts:
    """Sentences that a model is given by their place among them.

    Args:
        tokens: Numbers of the tokens of each.
        vectors: Of the tokens of each, (n, width), where a frozen encoder gives them; None where numbers are read.
    """

    def __init__(self, tokens: Tokens, vectors: Sequence[Tensor] | None = None) -> None:
        self.lengths = torch.tensor([len(one) for one in tokens], dtype=torch.int64)
        self._starts = self.lengths.cumsum(0) - self.lengths
        if vectors is None:
            self._flat = torch.tensor([number for one in tokens for number in one], dtype=torch.int64)
        else:
            self._flat = torch.cat(list(vectors))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.lengths)

    def taken(self, places: Tensor) -> Words:
        """Some of them, as wide as the longest."""
        lengths = self.lengths[places]
        offsets = torch.arange(int(lengths.max()))
        real = offsets < lengths.unsqueeze(1)
        found = self._flat[torch.where(real, self._starts[places].unsqueeze(1) + offsets, 0)]
        if self._flat.dim() == 1:
            return Words(torch.where(real, found, 0), None)
        return Words(found.masked_fill(~real.unsqueeze(-1), 0.0), ~real)


def learned_words(texts: Iterable[str], *, size: int, least: int) -> Subwords:
    """The words of the texts to train on, in lower case, with signs of punctuation apart."""
    return Subwords.learned(texts, size=size, least=least, kind="split", lower=True)


def cut_to(tokens: Tokens, longest: int, where: str) -> tuple[Tokens, int]:
    """Tokens of sentences, none longer than the limit, and how many were.

    Raises:
        InputError: If one has none, such as a sentence of characters that the tokenizer drops.
    """
    for place, one in enumerate(tokens):
        if not one:
            raise InputError(f"{where}: sentence {place} has no tokens; expected some words.")
    return [one[:longest] for one in tokens], sum(len(one) > longest for one in tokens)
