"""Which part of a long text is shown around one of its tokens: whole sentences if they fit, else whole words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

__all__ = ["Sentences", "passage_around"]

_ENDS = (".", "!", "?", "…", "。", "！", "？")


class Sentences:
    """Where the words and sentences of a text start.

    Args:
        pieces: The text of every token (:func:`fenchel.io.batches.text_pieces`).

    Attributes:
        length: How many tokens the text has.
        words: Positions at which words start, rising.
        starts: Positions at which sentences start, rising.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.length = len(pieces)
        self.words = [
            place for place, piece in enumerate(pieces) if place == 0 or piece.startswith((" ", "\n"))
        ]
        self.starts = [place for place in self.words if place == 0 or _ends_sentence(pieces[place - 1])]


def passage_around(text: Sentences, position: int, most: int) -> range:
    """Positions of the passage that shows a token in its sentence.

    The sentence that the token stands in, and whole sentences after and before it as long as they fit. A sentence that
    does not fit itself is cut around the token between words; a word that does not fit is cut anywhere.

    Args:
        text: The text.
        position: The token, from 0.
        most: How many tokens the passage may have, at least 1.

    Returns:
        The positions, ``position`` among them.

    Example:
        >>> text = Sentences(("Do", " not", ".", " Not", " every", " question", " ends", "."))
        >>> passage_around(text, 5, 5), passage_around(text, 5, 3), passage_around(text, 5, 8)
        (range(3, 8), range(4, 6), range(0, 8))
    """
    if text.length <= most:
        return range(text.length)
    first, last = _part(text.starts, position, text.length)
    if last - first > most:
        return _cut(text.words, position, first, last, most)
    while True:
        after = _part(text.starts, last, text.length)[1] if last < text.length else last
        before = _part(text.starts, first - 1, text.length)[0] if first else first
        if last < after <= first + most:
            last = after
        elif last - most <= before < first:
            first = before
        else:
            return range(first, last)


def _ends_sentence(piece: str) -> bool:
    return piece.strip().rstrip("\"'”’)").endswith(_ENDS)


def _part(starts: Sequence[int], position: int, end: int) -> tuple[int, int]:
    """Where the part that holds a position starts and ends, parts being told by their starts."""
    following = bisect_right(starts, position)
    return starts[following - 1], starts[following] if following < len(starts) else end


def _cut(words: Sequence[int], position: int, first: int, last: int, most: int) -> range:
    low = max(first, min(position - most // 2, last - most))
    own_first, own_last = _part(words, position, last)
    if own_last - own_first > most:
        low = max(own_first, min(low, own_last - most))
        return range(low, low + most)
    low = max(own_last - most, min(low, own_first))
    start = words[bisect_left(words, low)]
    high = bisect_right(words, low + most)
    return range(start, last if last <= low + most else words[high - 1])
