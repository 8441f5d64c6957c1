"""Sentences in two languages, line by line the same, in splits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from fenchel.arguments import shown
from fenchel.errors import InputError

__all__ = ["ParallelCorpus", "SentencePairs"]


@dataclass(frozen=True, eq=False)
class SentencePairs:
    """One split of sentences in two languages, held in memory.

    Attributes:
        first: The sentences in one language, as they stand in their file.
        second: The same in the other.
        name: What messages call them.
        note: What must be said beside every figure made from them; empty if nothing.

    Raises:
        InputError: If there are none, there are not as many in both languages, or one is empty.

    Example:
        >>> pairs = SentencePairs(("A dog.", "Two cats."), ("Ein Hund.", "Zwei Katzen."), "mine")
        >>> len(pairs), pairs.taken(1).second
        (2, ('Ein Hund.',))
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    name: str
    note: str = ""

    def __post_init__(self) -> None:
        for side in ("first", "second"):
            if not isinstance(getattr(self, side), tuple):
                raise InputError(
                    f"{self.name}: {side} is {shown(getattr(self, side))}; expected a tuple of sentences."
                )
        if len(self.first) != len(self.second):
            raise InputError(
                f"{self.name}: there are {len(self.first):,} sentences in one language and {len(self.second):,} in the "
                "other; expected as many, line by line the same."
            )
        if not self.first:
            raise InputError(f"{self.name}: there are no pairs of sentences. Give at least one.")
        for place, pair in enumerate(zip(self.first, self.second, strict=True)):
            for sentence in pair:
                if not isinstance(sentence, str) or not sentence.strip():
                    raise InputError(
                        f"{self.name}: pair {place} has the sentence {shown(sentence)}; expected one that is not "
                        "empty."
                    )

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.first)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all sentences."""
        digest = hashlib.sha256()
        for pair in zip(self.first, self.second, strict=True):
            digest.update(repr(pair).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def taken(self, count: int) -> SentencePairs:
        """The first pairs."""
        return replace(self, first=self.first[:count], second=self.second[:count])

    def turned(self) -> SentencePairs:
        """The same with the languages in the other order."""
        return replace(self, first=self.second, second=self.first)


@dataclass(frozen=True, eq=False)
class ParallelCorpus:
    """Sentences in two languages: to train, to validate, and in one or more sets to test on.

    Attributes:
        languages: Codes of the two, such as ``("en", "de")``, in the order of the sentences in a pair.
        train: What is trained on.
        validation: What is validated on.
        tests: Sets to test on, by name.
        name: Where they are from, as it was asked for.

    Raises:
        InputError: If the languages are no two codes, or there is no set to test on.
    """

    languages: tuple[str, str]
    train: SentencePairs
    validation: SentencePairs
    tests: Mapping[str, SentencePairs]
    name: str

    def __post_init__(self) -> None:
        codes = self.languages
        if not isinstance(codes, tuple) or len(set(codes)) != 2 or not all(isinstance(c, str) for c in codes):
            raise InputError(
                f"{self.name}: languages is {shown(codes)}; expected two codes, such as ('en', 'de')."
            )
        if not self.tests:
            raise InputError(f"{self.name}: there is no set of sentences to test on. Give at least one.")

    @property
    def directions(self) -> tuple[str, str]:
        """From which language into which, both ways.

        Example:
            >>> pairs = SentencePairs(("A dog.",), ("Ein Hund.",), "mine")
            >>> ParallelCorpus(("en", "de"), pairs, pairs, {"test": pairs}, "mine").directions
            ('en-de', 'de-en')
        """
        first, second = self.languages
        return f"{first}-{second}", f"{second}-{first}"

    def towards(self, direction: str) -> ParallelCorpus:
        """The same with the language that is translated from first in every pair.

        Args:
            direction: One of ``directions``.

        Raises:
            InputError: If it is none of them.
        """
        if direction not in self.directions:
            raise InputError(
                f"direction is {shown(direction)} and the sentences of {self.name} are in {self.languages[0]} and "
                f"{self.languages[1]}; expected {' or '.join(self.directions)}."
            )
        if direction == self.directions[0]:
            return self
        return replace(
            self,
            languages=(self.languages[1], self.languages[0]),
            train=self.train.turned(),
            validation=self.validation.turned(),
            tests={name: pairs.turned() for name, pairs in self.tests.items()},
        )

    def test(self, name: str) -> SentencePairs:
        """A set to test on.

        Raises:
            InputError: If there is none of that name.
        """
        if name not in self.tests:
            raise InputError(
                f"test is {shown(name)}, and {self.name} has no such sentences to test on; expected one of "
                f"{', '.join(self.tests)}."
            )
        return self.tests[name]
