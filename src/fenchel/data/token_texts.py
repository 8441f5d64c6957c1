"""Texts of tokens that came without a tokenizer, in the form in which one gives them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["PADDING", "TokenTexts"]

_PAD = "[PAD]"

_SPECIAL = re.compile(r"\[\S+\]|<\S+>")
_BEGINS = ("▁", "Ġ")


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


PADDING = _number_of(_PAD)
"""The number of what stands where a row has ended."""


class TokenTexts:
    """Numbers for texts of tokens, which depend on the text alone, and what a tokenizer says of them.

    Texts in square or angle brackets are special tokens. Where words begin with a space, ``▁`` or ``Ġ``, other texts go
    on with a word; else those with ``##`` before them do.

    Example:
        >>> texts = TokenTexts()
        >>> ids = texts.ids([["[CLS]", "no", "##thing"], ["[CLS]"]], 3)
        >>> tuple(ids.shape), texts.decode(ids[0].tolist()), texts.decode(ids[1].tolist())
        ((2, 3), '[CLS] nothing', '[CLS] [PAD] [PAD]')
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._begin = 0

    def ids(self, rows: Sequence[Sequence[str]], length: int) -> Tensor:
        """The numbers of the texts of rows, padded to a length: (rows, length)."""
        padded = [[*row, *[_PAD] * (length - len(row))] for row in rows]
        return torch.tensor([[self._number(text) for text in row] for row in padded], dtype=torch.int64)

    @property
    def all_special_ids(self) -> list[int]:
        """The special tokens among those that were seen."""
        return [number for number, text in self._texts.items() if _SPECIAL.fullmatch(text)]

    def get_vocab(self) -> dict[str, int]:
        """Every text that was seen, with its number."""
        return {text: number for number, text in self._texts.items()}

    def convert_ids_to_tokens(self, number: int) -> str:
        """A token as it was given, with ``▁`` for a space before it."""
        return self._texts.get(number, str(number))

    def decode(self, numbers: Sequence[int]) -> str:
        """The text that tokens are together."""
        spaced = self._begin * 20 > len(self._texts)
        said = ""
        for number in numbers:
            text = self.convert_ids_to_tokens(number)
            begins = text.startswith(_BEGINS) or (not spaced and not text.startswith("##"))
            begins = begins or _SPECIAL.fullmatch(text) is not None
            word = text[1:] if text.startswith(_BEGINS) else text.removeprefix("##") if said else text
            said += f" {word}" if said and begins else word
        return said

    def _number(self, text: str) -> int:
        text = f"▁{text[1:]}" if text.startswith(" ") else text
        number = _number_of(text)
        if number not in self._texts:
            self._texts[number] = text
            self._begin += text.startswith(_BEGINS)
        return number
