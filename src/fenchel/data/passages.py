"""Passages of a limited length, in two parts each, from articles or from sentences that translate each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Passage", "packed_passages", "paired_passages", "single_passages"]


class Passage(NamedTuple):
    """Some tokens in two parts.

    Attributes:
        first: Numbers of the tokens; at least one.
        second: Numbers of those that follow, or that translate them; may be empty.
        article: Of which article it is, or which pair.
        languages: Of the two parts, from 0.
        keys: What tells the parts from all others of the split: what is drawn for one follows from its key.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    article: int
    languages: tuple[int, int]
    keys: tuple[int, int]


def packed_passages(articles: Sequence[Sequence[Sequence[int]]], longest: int) -> list[Passage]:
    """As many whole sentences of an article in a row as fit; longer ones are cut.

    The second part begins with the sentence that begins nearest to the middle; where there is only one sentence, with
    the word in its middle.

    Args:
        articles: Numbers of the tokens of every sentence of every article.
        longest: How many tokens a passage has at most.

    Returns:
        The passages, in order, numbered by their keys.

    Example:
        >>> first, second = packed_passages([[[7, 8], [9], [4, 5, 6]]], longest=4)
        >>> first.first, first.second, second.first, second.second, second.keys
        ((7, 8), (9,), (4,), (5, 6), (2, 3))
    """
    found: list[Passage] = []
    for number, sentences in enumerate(articles):
        for held in _filled(sentences, longest):
            tokens = tuple(token for sentence in held for token in sentence)
            cut = _cut(list(map(len, held)))
            key = 2 * len(found)
            found.append(Passage(tokens[:cut], tokens[cut:], number, (0, 0), (key, key + 1)))
    return found


def paired_passages(pairs: Sequence[Sequence[Sequence[int]]], longest: int) -> list[Passage]:
    """A sentence and its translation in each passage, both cut after ``longest`` tokens.

    Example:
        >>> paired_passages([[[7, 8], [9]]], longest=4)
        [Passage(first=(7, 8), second=(9,), article=0, languages=(0, 1), keys=(0, 1))]
    """
    return [
        Passage(tuple(one[:longest]), tuple(other[:longest]), number, (0, 1), (2 * number, 2 * number + 1))
        for number, (one, other) in enumerate(pairs)
    ]


def single_passages(pairs: Sequence[Sequence[Sequence[int]]], longest: int) -> list[Passage]:
    """The sentences of pairs, each by itself, with the keys that they have side by side.

    Example:
        >>> [(one.first, one.languages[0], one.keys[0]) for one in single_passages([[[7, 8], [9]]], longest=4)]
        [((7, 8), 0, 0), ((9,), 1, 1)]
    """
    return [
        Passage(part, (), pair.article, (language, language), (key, key))
        for pair in paired_passages(pairs, longest)
        for part, language, key in zip(pair[:2], pair.languages, pair.keys, strict=True)
    ]


def _filled(sentences: Sequence[Sequence[int]], longest: int) -> list[list[Sequence[int]]]:
    """Sentences, or pieces of those that are too long, that fill a passage each."""
    found: list[list[Sequence[int]]] = []
    room = 0
    for sentence in sentences:
        for begin in range(0, len(sentence), longest):
            piece = sentence[begin : begin + longest]
            if len(piece) > room:
                found.append([])
                room = longest
            found[-1].append(piece)
            room -= len(piece)
    return found


def _cut(lengths: list[int]) -> int:
    """How many tokens the first part has."""
    total = sum(lengths)
    if len(lengths) == 1:
        return max(total // 2, 1)
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths) - 1)]
    return min(ends, key=lambda end: abs(2 * end - total))
