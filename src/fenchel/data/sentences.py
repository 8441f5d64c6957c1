"""Labelled sentences as words, with what is needed to name them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fenchel.arguments import shown
from fenchel.errors import InputError

__all__ = ["Sentences"]


@dataclass(frozen=True, eq=False)
class Sentences:
    """One split of a labelled set of sentences, held in memory.

    Attributes:
        words: The words of each sentence, at least one.
        labels: Class of each sentence, from 0.
        class_names: Name of each class.
        name: Where the sentences are from, as it was asked for.
        note: What must be said beside every figure made from them; empty if nothing.

    Raises:
        InputError: If there are no sentences, one has no words, or a label has no class.

    Example:
        >>> asked = Sentences((("who", "?"), ("where", "?")), (1, 0), ("place", "person"), "mine")
        >>> len(asked), asked.taken([1]).words
        (2, (('where', '?'),))
    """

    words: tuple[tuple[str, ...], ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    name: str
    note: str = ""

    def __post_init__(self) -> None:
        for what in ("words", "labels", "class_names"):
            if not isinstance(getattr(self, what), tuple):
                raise InputError(f"{self.name}: {what} is {shown(getattr(self, what))}; expected a tuple.")
        if not self.words:
            raise InputError(f"{self.name}: there are no sentences. Give at least one.")
        if len(self.words) != len(self.labels):
            raise InputError(
                f"{self.name}: there are {len(self.words)} sentences and {len(self.labels)} labels; expected one label "
                "a sentence."
            )
        for place, (words, label) in enumerate(zip(self.words, self.labels, strict=True)):
            if not isinstance(words, tuple) or not words or not all(isinstance(word, str) for word in words):
                raise InputError(
                    f"{self.name}: sentence {place} is {shown(words)}; expected a tuple of at least one word."
                )
            if type(label) is not int or not 0 <= label < len(self.class_names):
                raise InputError(
                    f"{self.name}: the label of sentence {place} is {shown(label)}; expected 0 to "
                    f"{len(self.class_names) - 1}, as there are {len(self.class_names)} classes."
                )

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.words)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of labels and words."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for label, words in zip(self.labels, self.words, strict=True):
            digest.update(repr((label, words)).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def taken(self, places: Sequence[int]) -> Sentences:
        """Some of the sentences, in that order."""
        words = tuple(self.words[place] for place in places)
        return replace(self, words=words, labels=tuple(self.labels[place] for place in places))
