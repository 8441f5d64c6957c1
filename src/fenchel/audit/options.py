"""What may be asked of an audit: checked once, at the door, with the names that the user typed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from fenchel.audit.manifest import CONVENTIONS
from fenchel.audit.shard import Shard
from fenchel.errors import InputError

__all__ = ["as_shard", "check_solver", "check_space", "numbers_from_one", "ready_made"]


def check_space(space: str) -> None:
    """Refuse a space that there is not.

    Raises:
        InputError: If it is neither ``input`` nor ``key``.
    """
    if space not in CONVENTIONS:
        raise InputError(
            f"space is {space!r}; expected 'input' (templates are the inputs of the key map, as in the "
            "papers) or 'key' (templates are the keys, for every model)."
        )


def check_solver(alpha: float, tol: float, memory_budget: int) -> None:
    """Refuse a reliability or a tolerance with which no problem can be solved.

    Raises:
        InputError: If alpha is not a finite number above 0, tol not a number between 0 and 1, or the budget not
            a number of bytes.
    """
    if not _is_real(alpha) or not math.isfinite(alpha) or alpha <= 0:
        raise InputError(
            f"alpha is {alpha!r}; it must be a finite number above 0 (1 is what the papers use)."
        )
    if not _is_real(tol) or not 0 < tol < 1:
        raise InputError(f"tol is {tol!r}; it must be a number above 0 and below 1, such as 1e-4.")
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int) or memory_budget < 1:
        raise InputError(f"memory_budget is {memory_budget!r}; it must be a number of bytes above 0.")


def numbers_from_one(name: str, numbers: Collection[int] | None) -> tuple[int, ...] | None:
    """Check a choice of layers or heads.

    Args:
        name: What the user calls it.
        numbers: Whole numbers from 1, or None for all.

    Returns:
        The numbers in order, each once, or None.

    Raises:
        InputError: If there are none, or one of them is not a whole number from 1.
    """
    if numbers is None:
        return None
    wrong = [
        number for number in numbers if isinstance(number, bool) or not isinstance(number, int) or number < 1
    ]
    if wrong or not numbers:
        got = f"holds {wrong[0]!r}" if wrong else "is empty"
        raise InputError(f"{name} {got}; expected whole numbers from 1, such as [1, 2], or None for all.")
    return tuple(sorted(set(numbers)))


def as_shard(shard: Shard | str | Sequence[int]) -> Shard:
    """A shard from ``Shard``, ``"i/n"`` or ``(i, n)``.

    Raises:
        InputError: If it is none of these, or there is no such shard.
    """
    if isinstance(shard, Shard):
        return shard
    if isinstance(shard, str):
        return Shard.parse(shard)
    if len(shard) != 2:
        raise InputError(
            f"shard is {shard!r}; expected two numbers (i, n), such as (0, 4) for the first of four."
        )
    return Shard(*shard)


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


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
