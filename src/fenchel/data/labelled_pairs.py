"""Pairs of sentences with what one says of the other: a label, a degree of relatedness, or both."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fenchel.arguments import shown
from fenchel.errors import InputError

__all__ = ["ENTAILMENT", "LEAST_RELATED", "MOST_RELATED", "LabelledPairs"]

ENTAILMENT = ("entailment", "neutral", "contradiction")
"""What a premise does to a hypothesis, in the order in which labels are numbered."""

LEAST_RELATED = 1.0

MOST_RELATED = 5.0


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """One split of a set of pairs of sentences, held in memory.

    Attributes:
        premises: The first sentence of each pair.
        hypotheses: The second.
        labels: Class of each pair, from 0.
        class_names: Name of each class.
        relatedness: How much the two are about the same, from 1 to 5, of each pair; None where the data do not say.
        name: Where the pairs are from, as it was asked for.
        note: What must be said beside every figure made from them; empty if nothing.

    Raises:
        InputError: If there are no pairs, a sentence is empty, a label has no class, or a relatedness is out of range.

    Example:
        >>> pairs = LabelledPairs(("a dog barks",), ("it is quiet",), (2,), ENTAILMENT, (1.5,), "mine")
        >>> len(pairs), pairs.class_names[pairs.labels[0]]
        (1, 'contradiction')
    """

    premises: tuple[str, ...]
    hypotheses: tuple[str, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    relatedness: tuple[float, ...] | None
    name: str
    note: str = ""

    def __post_init__(self) -> None:
        counts = {
            "premises": len(self.premises),
            "hypotheses": len(self.hypotheses),
            "labels": len(self.labels),
        }
        if self.relatedness is not None:
            counts["relatedness"] = len(self.relatedness)
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{count} {what}" for what, count in counts.items())
            raise InputError(f"{self.name}: there are {listed}; expected as many of each.")
        if not self.premises:
            raise InputError(f"{self.name}: there are no pairs of sentences. Give at least one.")
        for place, pair in enumerate(zip(self.premises, self.hypotheses, strict=True)):
            for sentence in pair:
                if not isinstance(sentence, str) or not sentence.strip():
                    raise InputError(
                        f"{self.name}: a sentence of pair {place} is {shown(sentence)}; expected some words."
                    )
        for place, label in enumerate(self.labels):
            if type(label) is not int or not 0 <= label < len(self.class_names):
                raise InputError(
                    f"{self.name}: the label of pair {place} is {shown(label)}; expected 0 to "
                    f"{len(self.class_names) - 1}, as there are {len(self.class_names)} classes."
                )
        for place, degree in enumerate(self.relatedness or ()):
            if not (math.isfinite(degree) and LEAST_RELATED <= degree <= MOST_RELATED):
                raise InputError(
                    f"{self.name}: the relatedness of pair {place} is {shown(degree)}; expected "
                    f"{LEAST_RELATED:g} to {MOST_RELATED:g}."
                )

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.premises)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of sentences, labels and relatedness."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        degrees = self.relatedness or (None,) * len(self)
        for row in zip(self.premises, self.hypotheses, self.labels, degrees, strict=True):
            digest.update(repr(row).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def taken(self, places: Sequence[int]) -> LabelledPairs:
        """Some of the pairs, in that order."""
        return replace(
            self,
            premises=tuple(self.premises[place] for place in places),
            hypotheses=tuple(self.hypotheses[place] for place in places),
            labels=tuple(self.labels[place] for place in places),
            relatedness=None
            if self.relatedness is None
            else tuple(self.relatedness[place] for place in places),
        )
