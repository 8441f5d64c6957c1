"""Tokens of a tokenizer and a model, and texts of tokens that come without a tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import checked, shown
from fenchel.errors import InputError

_LONGEST_BY_DEFAULT = 512
_NO_LIMIT = 1_000_000  # tokenizers without a limit of their own report an astronomic one
_PIECE = 1 << 20
# Learned positions of these families start after the padding index, so their tables hold that many fewer
# tokens.
_POSITIONS_AFTER_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "xmod"}
)


def longest_window(tokenizer: Any, config: Any, max_length: int | None) -> int:
    """The number of tokens in a window, special tokens included.

    Args:
        tokenizer: With the default ``model_max_length``, if any.
        config: The model's configuration, with the limit ``max_position_embeddings``, if any.
        max_length: The requested number; None for the smaller of the two, at most 512.

    Raises:
        InputError: If ``max_length`` is more than the model's positions.

    Example:
        >>> from types import SimpleNamespace
        >>> tokenizer = SimpleNamespace(model_max_length=256)
        >>> config = SimpleNamespace(max_position_embeddings=512)
        >>> longest_window(tokenizer, config, None)
        256
    """
    positions = _positions(config)
    if max_length is not None:
        length = checked("max_length", max_length)
        if positions is not None and length > positions:
            raise InputError(
                f"max length {length} is more than the model's {positions} positions. Give at most {positions}."
            )
        return length
    limits = [
        limit
        for limit in (positions, getattr(tokenizer, "model_max_length", None))
        if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT
    ]
    return min([_LONGEST_BY_DEFAULT, *(int(limit) for limit in limits)])


def _positions(config: Any) -> int | None:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    if getattr(config, "model_type", None) in _POSITIONS_AFTER_PADDING:
        return positions - int(getattr(config, "pad_token_id", None) or 0) - 1
    return positions


def decoder_start(config: Any) -> int | None:
    """The id of the first token of the decoder; None if the model is no encoder-decoder.

    Raises:
        InputError: If the configuration names no such token.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return None
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    raise InputError(
        "the model's configuration names no token that its decoder starts with: set its decoder_start_token_id."
    )


def padding_token(tokenizer: Any, config: Any = None) -> int:
    """The id that fills short rows: the token for padding, else that for the end of a text, else 0.

    These positions are masked and never counted, so any id that the model knows will do.
    """
    known = _vocabulary(config, target=False)
    for name in ("pad_token_id", "eos_token_id"):
        token = getattr(tokenizer, name, None)
        if isinstance(token, int) and (known is None or 0 <= token < known):
            return token
    return 0


def check_known(ids: Sequence[int], tokenizer: Any, config: Any, *, target: bool = False) -> None:
    """Raise if the model has no embedding for a token.

    Args:
        ids: The ids of the tokens.
        tokenizer: The tokenizer, if any.
        config: The model's configuration; without a size of the vocabulary nothing is checked.
        target: Whether they are tokens of an encoder-decoder's target.

    Raises:
        InputError: Naming the first such token.
    """
    known = _vocabulary(config, target=target)
    if known is None or not ids or 0 <= min(ids) <= max(ids) < known:
        return
    number = next(number for number in ids if not 0 <= number < known)
    if tokenizer is None:
        raise InputError(
            f"there is a token {number}, and the model knows the tokens 0 to {known - 1}. Mend the ids."
        )
    token = tokenizer.convert_ids_to_tokens(number) if hasattr(tokenizer, "convert_ids_to_tokens") else number
    raise InputError(
        f"the tokenizer gives {token!r} the number {number}, and the model knows the tokens 0 to {known - 1}. Use the "
        "tokenizer that the model was trained with, or a model whose embeddings were resized to it."
    )


def _vocabulary(config: Any, *, target: bool) -> int | None:
    """The size of a model's vocabulary; None if unknown."""
    for name in ("decoder_vocab_size", "vocab_size") if target else ("vocab_size",):
        size = getattr(config, name, None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def special_tokens(tokenizer: Any, *, target: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that a tokenizer adds before and after a text.

    Args:
        tokenizer: A tokenizer of ``transformers``; it is given the first probe that it does not turn into nothing.
        target: Whether the text is the target of a translation model.

    Returns:
        Ids of the tokens before the text and of those after it.

    Raises:
        InputError: If the tokens of the text are not found between special tokens.
    """
    _check_tokenizer(tokenizer)
    known = getattr(tokenizer, "convert_ids_to_tokens", None)
    probes = ["a", "the", "0", ".", *(known(list(range(min(len(tokenizer), 100)))) if known else ())]
    for probe in probes:
        text = token_ids(tokenizer, probe, target=target)
        whole = token_ids(tokenizer, probe, add_special_tokens=True, target=target)
        for begin in range(len(whole) - len(text) + 1 if text else 0):
            if whole[begin : begin + len(text)] == text:
                return tuple(whole[:begin]), tuple(whole[begin + len(text) :])
    raise InputError(
        f"{type(tokenizer).__name__} does not put its special tokens around the text, or knows no token at "
        "all, so documents cannot be cut into windows. Give model inputs instead of texts, with tokenizer=None."
    )


def _check_tokenizer(tokenizer: Any) -> None:
    try:
        ids = token_ids(tokenizer, "a")
    except Exception:  # of any object that is not a tokenizer
        ids = None
    if isinstance(tokenizer, type) or ids is None or not all(isinstance(number, int) for number in ids):
        raise InputError(
            f"tokenizer is {shown(tokenizer)}; expected a tokenizer of transformers, which gives input_ids for a text."
        )


def token_ids(
    tokenizer: Any, text: str, *, add_special_tokens: bool = False, target: bool = False
) -> list[int]:
    """The ids of all tokens of a text, however long it is.

    Args:
        tokenizer: A tokenizer of ``transformers``.
        text: Any text.
        add_special_tokens: Whether to add the tokens that mark its beginning and end.
        target: Whether the text is the target of a translation model; some have another vocabulary for targets.
    """
    options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "verbose": False}
    encoded = tokenizer(text_target=text, **options) if target else tokenizer(text, **options)
    return list(encoded["input_ids"])


def pieces(text: str) -> Iterator[tuple[str, float]]:
    """Cut a long text at spaces into pieces of a million characters, to limit the memory of the tokenizer.

    Args:
        text: Any text; most are one piece.

    Yields:
        Each piece, and the share of the text up to its end.
    """
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            space = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end))
            end = space if space > begin else end
        yield text[begin:end], min(1.0, end / len(text))
        begin = end


def token_text(tokenizer: Any, number: int) -> str:
    """The readable text of a token; its id if there is no tokenizer."""
    if tokenizer is None:
        return str(number)
    return str(tokenizer.decode([number])).strip() or str(tokenizer.convert_ids_to_tokens(number))


_INCOMPLETE = "\ufffd"


def text_pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds to that of the tokens before it.

    A token that begins a word begins with a space, one that continues a word does not. A character of several tokens
    is added by the last of them.

    Args:
        tokenizer: Decodes ids.
        ids: The tokens, without padding.

    Returns:
        A text for each token, the first without a leading space; special tokens are spelled out.
    """
    pieces: list[str] = []
    # Tokens up to ``known`` have their texts; the last of them, from ``start`` on, are decoded again as context.
    start = known = 0
    for end in range(1, len(ids) + 1):
        before = str(tokenizer.decode(list(ids[start:known]))) if known > start else ""
        decoded = str(tokenizer.decode(list(ids[start:end])))
        # A character has at most 4 bytes.
        if decoded.endswith(_INCOMPLETE) and end < len(ids) and end - known < 4:
            pieces.append("")
            continue
        if decoded.startswith(before):
            added = decoded[len(before) :]
        else:  # some decoders clean up the text before: " do not" becomes " don't"
            added = f" {str(tokenizer.decode([ids[end - 1]])).strip()}"
        pieces.append(added.lstrip() if not any(pieces) else added)
        start, known = known, end
    return tuple(pieces)


_PAD = "[PAD]"

_SPECIAL = re.compile(r"\[\S+\]|<\S+>")
_BEGINS = ("▁", "Ġ")


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


PADDING = _number_of(_PAD)
"""The id of padding in :class:`TokenTexts`."""


class TokenTexts:
    """A tokenizer of texts that are cut into tokens already; the id of a token depends on its text alone.

    Texts in square or angle brackets are special tokens. If words begin with a space, ``▁`` or ``Ġ``, other texts
    continue a word; else those that begin with ``##`` do.

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
        """(rows, length) ids of texts, padded on the right."""
        padded = [[*row, *[_PAD] * (length - len(row))] for row in rows]
        return torch.tensor([[self._number(text) for text in row] for row in padded], dtype=torch.int64)

    @property
    def all_special_ids(self) -> list[int]:
        """The special tokens among those seen so far."""
        return [number for number, text in self._texts.items() if _SPECIAL.fullmatch(text)]

    def get_vocab(self) -> dict[str, int]:
        """Every text seen so far, with its id."""
        return {text: number for number, text in self._texts.items()}

    def convert_ids_to_tokens(self, number: int) -> str:
        """The text of a token, with ``▁`` for a leading space."""
        return self._texts.get(number, str(number))

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of a sequence of tokens."""
        spaced = self._begin * 20 > len(self._texts)
        decoded = ""
        for number in numbers:
            text = self.convert_ids_to_tokens(number)
            begins = text.startswith(_BEGINS) or (not spaced and not text.startswith("##"))
            begins = begins or _SPECIAL.fullmatch(text) is not None
            word = text[1:] if text.startswith(_BEGINS) else text.removeprefix("##") if decoded else text
            decoded += f" {word}" if decoded and begins else word
        return decoded

    def _number(self, text: str) -> int:
        text = f"▁{text[1:]}" if text.startswith(" ") else text
        number = _number_of(text)
        if number not in self._texts:
            self._texts[number] = text
            self._begin += text.startswith(_BEGINS)
        return number
