"""What has to be known of a tokenizer and a model to cut text into windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.errors import InputError

__all__ = [
    "check_known",
    "decoder_start",
    "longest_window",
    "padding_token",
    "pieces",
    "special_tokens",
    "token_ids",
]

_LONGEST_BY_DEFAULT = 512
_NO_LIMIT = 1_000_000  # tokenizers without a limit of their own report an astronomic one
_PIECE = 1 << 20
# Learned positions of these families start after the padding index, so their tables hold that many fewer
# tokens.
_POSITIONS_AFTER_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "xmod"}
)


def longest_window(tokenizer: Any, config: Any, max_length: int | None) -> int:
    """How many tokens a window may hold, special tokens included.

    Args:
        tokenizer: Its ``model_max_length`` is a default, where it has one.
        config: The model's configuration; its ``max_position_embeddings`` is a limit, where it has one.
        max_length: What was asked for, or None for the default: the smaller of the two, at most 512.

    Returns:
        The length in tokens.

    Raises:
        InputError: If more was asked for than the model has positions.

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
                f"max length {length} is more than the model's {positions} positions. Give at most "
                f"{positions}."
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
    """The token with which the decoder of an encoder-decoder model starts.

    Args:
        config: The model's configuration.

    Returns:
        The token's id, or None where the model has not both an encoder and a decoder.

    Raises:
        InputError: If there is a decoder and the configuration names no such token.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return None
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    raise InputError(
        "the model's configuration names no token that its decoder starts with: set its "
        "decoder_start_token_id."
    )


def padding_token(tokenizer: Any, config: Any = None) -> int:
    """The token that fills short rows: for padding, else for the end of a text, else the first of all.

    Filled positions are masked and never counted, so any token that the model knows will do.
    """
    known = _vocabulary(config, target=False)
    for name in ("pad_token_id", "eos_token_id"):
        token = getattr(tokenizer, name, None)
        if isinstance(token, int) and (known is None or 0 <= token < known):
            return token
    return 0


def check_known(ids: Sequence[int], tokenizer: Any, config: Any, *, target: bool = False) -> None:
    """Refuses tokens that the model has no embedding for.

    Args:
        ids: Of a text.
        tokenizer: What gave them.
        config: The model's configuration; where it tells no number of tokens, nothing is checked.
        target: Whether they are what an encoder-decoder is to write.

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
    """How many tokens a model knows."""
    for name in ("decoder_vocab_size", "vocab_size") if target else ("vocab_size",):
        size = getattr(config, name, None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that a tokenizer puts before and after a text.

    Args:
        tokenizer: A tokenizer of ``transformers``; it is asked about the first probe that is not empty to it.

    Returns:
        Ids of the tokens before and of those after.

    Raises:
        InputError: If the text cannot be found again between its special tokens.
    """
    _check_tokenizer(tokenizer)
    known = getattr(tokenizer, "convert_ids_to_tokens", None)
    probes = ["a", "the", "0", ".", *(known(list(range(min(len(tokenizer), 100)))) if known else ())]
    for probe in probes:
        text = token_ids(tokenizer, probe)
        whole = token_ids(tokenizer, probe, add_special_tokens=True)
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
    except Exception:  # whatever something that is no tokenizer makes of being called like one
        ids = None
    if isinstance(tokenizer, type) or ids is None or not all(isinstance(number, int) for number in ids):
        raise InputError(
            f"tokenizer is {shown(tokenizer)}; expected a tokenizer of transformers, which gives input_ids for a text."
        )


def token_ids(
    tokenizer: Any, text: str, *, add_special_tokens: bool = False, target: bool = False
) -> list[int]:
    """Ids of all the tokens of a text, however long it is.

    Args:
        tokenizer: A tokenizer of ``transformers``.
        text: Any text.
        add_special_tokens: Whether to add the tokens that mark its beginning and end.
        target: Whether the text is what a translation model is to write; some have another vocabulary for
            that.

    Returns:
        The ids.
    """
    options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "verbose": False}
    return list(
        (tokenizer(text_target=text, **options) if target else tokenizer(text, **options))["input_ids"]
    )


def pieces(text: str) -> Iterator[tuple[str, float]]:
    """Cuts a long text at spaces into pieces of a million characters; a tokenizer needs much memory for each.

    Args:
        text: Any text; most are one piece.

    Yields:
        Each piece, and the share of the text that has been given with it.
    """
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            space = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end))
            end = space if space > begin else end
        yield text[begin:end], min(1.0, end / len(text))
        begin = end
