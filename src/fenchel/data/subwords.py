"""Words and pieces of words by number, learned from the text that is trained on: the tokenizer of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["TOKENIZER_FILE", "Subwords"]

TOKENIZER_FILE = "tokenizer.json"
"""The file's name in a training's folder."""

_KINDS = ("bpe", "word", "split")
_UNKNOWN = "[UNK]"
_PADDING = "[PAD]"


class Subwords:
    """A tokenizer of the ``tokenizers`` library, which it is read and written by.

    Numbers of special tokens come first, in the order in which they were asked for; padding is 0, what is not known 1.

    Args:
        text: As ``text`` of another one has it.

    Raises:
        InputError: If it is none.
        MissingExtraError: If ``tokenizers`` is not installed.

    Example:
        >>> subwords = Subwords.learned(["a dog barks", "a dog sleeps"] * 2, size=40, kind="word", special=("[MASK]",))
        >>> subwords.decoded(subwords.encoded(["a dog sleeps"])[0])
        'a dog sleeps'
    """

    def __init__(self, text: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtraError("tokenizers", "text") from None
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise InputError(
                f"{shown(text)} is no tokenizer: {error}. Give what the training wrote."
            ) from None
        self.text = text

    @classmethod
    def learned(
        cls,
        texts: Iterable[str],
        *,
        size: int,
        kind: str = "bpe",
        lower: bool = False,
        least: int = 2,
        special: Sequence[str] = (),
    ) -> Subwords:
        """The most useful pieces of some texts; the same texts give the same pieces.

        Args:
            texts: Those to train on, and no others.
            size: How many numbers there are at most.
            kind: ``bpe``, pieces that are merged as often as they stand together, with spaces as part of them, so that
                decoding gives the text back; ``word``, what stands between spaces, for text that is cut into words; or
                ``split``, likewise with every sign of punctuation on its own, for text as people write it.
            lower: Whether capitals are made small.
            least: How often a piece has to be there to be known.
            special: Tokens besides ``[PAD]`` and ``[UNK]`` that no text is cut into.

        Raises:
            InputError: If the texts are empty, or the kind is unknown.
            MissingExtraError: If ``tokenizers`` is not installed.
        """
        if kind not in _KINDS:
            raise InputError(f"kind of tokenizer is {shown(kind)}; expected one of {', '.join(_KINDS)}.")
        tokenizer, trainer = _new(kind, lower, size, least, [_PADDING, _UNKNOWN, *special])
        known = [text for text in texts if text.strip()]
        tokenizer.train_from_iterator(known, trainer)
        if tokenizer.get_vocab_size() <= len(special) + 2:
            raise InputError("there is no text to learn words from. Give some that is not empty.")
        return cls(tokenizer.to_str())

    def __len__(self) -> int:
        """How many numbers there are."""
        return self._tokenizer.get_vocab_size()

    @cached_property
    def kind(self) -> str:
        """``word``, what stands between spaces; or ``bpe``, pieces of words."""
        return "word" if json.loads(self.text)["model"]["type"] == "WordLevel" else "bpe"

    def number(self, token: str) -> int:
        """The number of a token.

        Raises:
            InputError: If it is not known.
        """
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise InputError(f"{shown(token)} is no token of this tokenizer, which knows {len(self):,}.")
        return found

    def token(self, number: int) -> str:
        """The token of a number, as it stands in the tokenizer.

        Raises:
            InputError: If there is none.
        """
        found = self._tokenizer.id_to_token(number) if 0 <= number < len(self) else None
        if found is None:
            raise InputError(f"there is no token {number}; this tokenizer knows 0 to {len(self) - 1}.")
        return found

    @cached_property
    def special(self) -> frozenset[int]:
        """Numbers of tokens that no text is cut into."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the tokens of texts, without special tokens around them; those that are written are found."""
        return [one.ids for one in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def pieces(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """The tokens of a text, with where in it they begin and end, in characters."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return list(zip(found.tokens, found.offsets, strict=True))

    def decoded(self, numbers: Sequence[int]) -> str:
        """The text of tokens; special ones are left out."""
        return self._tokenizer.decode(list(numbers), skip_special_tokens=True)

    @staticmethod
    def padded(rows: Sequence[Sequence[int]], *, width: int | None = None) -> Tensor:
        """Rows of numbers side by side, int64 (rows, width), padding after the shorter ones.

        Example:
            >>> Subwords.padded([[5, 6, 7], [8]]).tolist()
            [[5, 6, 7], [8, 0, 0]]
        """
        width = max(map(len, rows), default=0) if width is None else width
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)

    def __eq__(self, other: object) -> bool:
        """Whether another one cuts every text alike."""
        return isinstance(other, Subwords) and json.loads(self.text) == json.loads(other.text)

    def __hash__(self) -> int:
        """Of the text."""
        return hash(self.text)


def _new(kind: str, lower: bool, size: int, least: int, special: list[str]) -> tuple[Tokenizer, Any]:
    """A tokenizer that knows nothing yet, and what teaches it."""
    try:
        from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
        from tokenizers import models as kinds
    except ImportError:
        raise MissingExtraError("tokenizers", "text") from None

    teaching: dict[str, Any] = {
        "vocab_size": size,
        "min_frequency": least,
        "special_tokens": special,
        "show_progress": False,
    }
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if lower else [])]
    if kind == "bpe":
        tokenizer = Tokenizer(kinds.BPE(unk_token=_UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(**teaching)
    else:
        tokenizer = Tokenizer(kinds.WordLevel(unk_token=_UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if kind == "split":
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
            )
        trainer = trainers.WordLevelTrainer(**teaching)
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer, trainer
