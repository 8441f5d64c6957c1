"""What may be asked of an audit: checked once, at the door, with the names that the user typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from fenchel.arguments import shown
from fenchel.data.shard import Shard
from fenchel.errors import InputError

__all__ = ["as_shard", "ready_made"]


def as_shard(shard: Shard | str | Sequence[int]) -> Shard:
    """A shard from ``Shard``, ``"i/n"`` or ``(i, n)``.

    Raises:
        InputError: If it is none of these, or there is no such shard.
    """
    if isinstance(shard, Shard):
        return shard
    if isinstance(shard, str):
        return Shard.parse(shard)
    if isinstance(shard, Sequence) and len(shard) == 2:
        index, count = shard
        if all(isinstance(number, Integral) and not isinstance(number, bool) for number in (index, count)):
            return Shard(int(index), int(count))
    raise InputError(
        f"shard is {shown(shard)}; expected two whole numbers (i, n), such as (0, 4) for the first of four."
    )


def ready_made(texts: Any, tokenizer: Any) -> bool:
    """Whether what is to be read are model inputs rather than texts.

    Args:
        texts: A path, strings, or mappings of tensors.
        tokenizer: The tokenizer, if one was given.
    """
    if isinstance(texts, str | Path):
        return False
    if isinstance(texts, Mapping):
        raise InputError(
            "texts is one mapping; expected a list of them, each what the model is called with. "
            "Write [inputs]."
        )
    if not isinstance(texts, Iterable):
        raise InputError(
            f"texts is a {type(texts).__name__}; expected a path, strings, or mappings of model inputs."
        )
    first = texts[0] if isinstance(texts, Sequence) and texts else None
    return isinstance(first, Mapping) or (first is None and tokenizer is None)
