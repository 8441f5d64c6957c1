"""Running text as articles of sentences, with what is needed to name it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fenchel.arguments import shown
from fenchel.errors import InputError

__all__ = ["Articles", "sentences_of"]

_ENDS = frozenset(".!?")
_QUOTES = frozenset({'"', "''", "”"})


@dataclass(frozen=True, eq=False)
class Articles:
    """One split of running text, held in memory.

    Attributes:
        texts: The sentences of each article, at least one, in order; words are apart by spaces.
        name: Where the text is from, as it was asked for.
        note: What must be said beside every figure made from it; empty if nothing.
        languages: Where an article is a sentence and its translation, the languages of the two; otherwise empty.

    Raises:
        InputError: If there are no articles, or one has no sentences or a blank one.

    Example:
        >>> text = Articles((("a dog barks .", "it is loud ."), ("a tree",)), "mine")
        >>> len(text), text.words
        (2, 10)
    """

    texts: tuple[tuple[str, ...], ...]
    name: str
    note: str = ""
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.texts, tuple) or not self.texts:
            raise InputError(f"{self.name}: texts is {shown(self.texts)}; expected a tuple of articles.")
        for place, sentences in enumerate(self.texts):
            whole = isinstance(sentences, tuple) and all(isinstance(one, str) for one in sentences)
            if not whole or not sentences or not all(one.strip() for one in sentences):
                raise InputError(
                    f"{self.name}: article {place} is {shown(sentences)}; expected a tuple of sentences, none blank."
                )
            if self.languages and len(sentences) != len(self.languages):
                raise InputError(
                    f"{self.name}: pair {place} has {len(sentences)} sentences; expected one for each of "
                    f"{', '.join(self.languages)}."
                )

    def __len__(self) -> int:
        """The number of articles."""
        return len(self.texts)

    @property
    def words(self) -> int:
        """How many words there are."""
        return sum(len(sentence.split()) for sentences in self.texts for sentence in sentences)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the sentences."""
        digest = hashlib.sha256()
        for sentences in self.texts:
            digest.update(repr(sentences).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def taken(self, places: Sequence[int]) -> Articles:
        """Some of the articles, in that order."""
        return replace(self, texts=tuple(self.texts[place] for place in places))


def sentences_of(line: str) -> list[str]:
    """The sentences of a line whose words, signs among them, are apart by spaces.

    One ends with ``.``, ``!`` or ``?``, and with a quotation that ends there.

    Example:
        >>> sentences_of('He said " no . " It was late . And then')
        ['He said " no . "', 'It was late .', 'And then']
    """
    found: list[str] = []
    current: list[str] = []
    words = line.split()
    for place, word in enumerate(words):
        current.append(word)
        following = words[place + 1] if place + 1 < len(words) else ""
        open_quote = sum(one in _QUOTES for one in current) % 2 == 1
        closes = word in _QUOTES and not open_quote and len(current) > 1 and current[-2] in _ENDS
        if closes or (word in _ENDS and not (open_quote and following in _QUOTES)):
            found.append(" ".join(current))
            current = []
    return [*found, " ".join(current)] if current else found
