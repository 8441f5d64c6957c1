"""The tokens of a window as text, and which part is shown around one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from torch import Tensor

from fenchel.auditing.examples import Picture, reads_decoder
from fenchel.auditing.heads import Kind
from fenchel.io.batches import Batch

__all__ = ["Sentences", "WindowText", "WindowTexts", "passage_around"]


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


class WindowText:
    """One side of one window.

    Args:
        batch: The batch.
        row: The window's row.
        decoder: Whether the tokens are those of the decoder's own input.
        length: How many positions there are, padding included. Where the tokens are not as many, positions are none of
            them, and the input is not text.

    Attributes:
        pieces: The text of each token, with a space before it where a word begins; empty where the input is no text.
        length: How many positions the window has, without padding.
    """

    def __init__(self, batch: Batch, row: int, *, decoder: bool, length: int) -> None:
        self._batch, self._row, self._decoder = batch, row, decoder
        self._is_text = batch.is_text_of(length, decoder=decoder)
        self.pieces = batch.pieces(row, decoder=decoder) if self._is_text else ()
        self.length = len(self.pieces) or length
        special = batch.special(row, decoder=decoder) if self._is_text else ()
        self._special = (*special, *[False] * (self.length - len(special)))
        self._sentences = Sentences(self.pieces or (" ",) * self.length)
        self._passages: dict[tuple[int, int], range] = {}
        self._contexts: dict[range, tuple[str, dict[int, int]]] = {}
        self._tokens: dict[int, str] = {}

    def token(self, position: int) -> str:
        """A token's text."""
        if not self._is_text:
            return self._batch.place(position, self.length)
        if position not in self._tokens:
            self._tokens[position] = self._batch.token(self._row, position, decoder=self._decoder)
        return self._tokens[position]

    def picture(self, first_order: Tensor, exact: Tensor) -> Picture | None:
        """The image with the weights of all positions; None where positions are no patches of one."""
        return Picture.of(self._batch.pictures, self._row, first_order, exact)

    def passage(self, position: int, most: int) -> range:
        """The passage around a token."""
        key = position, most
        if key not in self._passages:
            self._passages[key] = passage_around(self._sentences, position, most)
        return self._passages[key]

    def beginning(self, most: int) -> list[int]:
        """The first positions: as many whole words as fit."""
        ends = [place for place in (*self._sentences.words, self.length) if 0 < place <= most]
        return list(range(max(ends, default=most)))

    def context(self, position: int, most: int) -> tuple[str, tuple[int, int] | None]:
        """The passage around a token, "…" where words are left out, without special tokens; and where the token is."""
        if not self.pieces:
            return "", None
        span = self.passage(position, most)
        if span not in self._contexts:
            self._contexts[span] = self._spelled(span)
        text, starts = self._contexts[span]
        if position not in starts:
            return text, None
        return text, (starts[position], starts[position] + len(self.pieces[position].lstrip()))

    def _spelled(self, span: range) -> tuple[str, dict[int, int]]:
        """The text of a passage, and where in it each token starts."""
        text = "… " if not all(self._special[: span.start]) else ""
        starts: dict[int, int] = {}
        for place in span:
            if not self._special[place]:
                piece = self.pieces[place]
                piece = piece if starts else piece.lstrip()
                starts[place] = len(text) + len(piece) - len(piece.lstrip())
                text += piece
        return (f"{text} …" if not all(self._special[span.stop :]) else text), starts


class WindowTexts:
    """The texts of a batch, each read when it is first asked for.

    Args:
        batch: The batch.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._known: dict[tuple[int, bool, int], WindowText] = {}

    def sides(self, row: int, kind: Kind, lengths: Sequence[int]) -> tuple[WindowText, WindowText]:
        """The texts of queries and templates of a window.

        Args:
            row: Its row.
            kind: How they attend.
            lengths: How many positions either has, where they are not text.
        """
        decoder = reads_decoder(kind, self.batch)
        return self._of(row, decoder, lengths[0]), self._of(row, decoder and kind != "cross", lengths[1])

    def _of(self, row: int, decoder: bool, length: int) -> WindowText:
        key = row, decoder, length
        if key not in self._known:
            self._known[key] = WindowText(self.batch, row, decoder=decoder, length=length)
        return self._known[key]
