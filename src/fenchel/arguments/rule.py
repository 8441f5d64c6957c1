"""What a rule for arguments is: what a value has to be, the words for it, and the value as the package takes it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

from fenchel.errors import FenchelError, InputError

__all__ = ["AbstractRule", "Maybe", "Unfit", "listed", "shown"]

_LONGEST_SHOWN = 60
_DIGITS_SHOWN = 20


class Unfit(ValueError):  # noqa: N818 - it never leaves this package
    """A value that a rule refuses. Its message, if any, takes the place of the value in what the user reads."""


@dataclass(frozen=True)
class AbstractRule(ABC):
    """What a value has to be."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """The rule in words, to stand after "expected"."""

    @abstractmethod
    def fit(self, value: Any) -> Any:
        """The value as the rest of the package takes it.

        Raises:
            Unfit: If the value breaks the rule.
        """

    def check(self, name: str, value: Any, error: type[FenchelError] = InputError) -> Any:
        """The value as the rest of the package takes it.

        Args:
            name: What the user calls the argument.
            value: What was given.
            error: What to raise.

        Returns:
            The value: a Python number for a number of numpy, a ``Path`` for the name of one, and so on.

        Raises:
            FenchelError: Of the type ``error``, if the value breaks the rule: "NAME is VALUE; expected RULE."

        Example:
            >>> from fenchel.arguments import Whole
            >>> Whole(1, 100, "8").check("batch size", 0)
            Traceback (most recent call last):
            fenchel.errors.InputError: batch size is 0; expected a whole number from 1 to 100, such as 8.
        """
        try:
            return self.fit(value)
        except Unfit as reason:
            got = str(reason) or f"is {shown(value)}"
        raise error(f"{name} {got}; expected {self.expected}.")


@dataclass(frozen=True)
class Maybe(AbstractRule):
    """Another rule, or None.

    Attributes:
        rule: For what is not None.
    """

    rule: AbstractRule

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return self.rule.expected

    def fit(self, value: Any) -> Any:
        """See ``AbstractRule``."""
        return None if value is None else self.rule.fit(value)


def shown(value: Any) -> str:
    """A value in a few words on one line, however large it is.

    Example:
        >>> shown("a b"), shown(10**5000), shown([1, 2])
        ("'a b'", 'a number of 5,001 digits', '[1, 2]')
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_DIGITS_SHOWN:
        # Python writes no number of more than 4,300 digits out.
        digits = int(value.bit_length() * math.log10(2))
        return f"a number of {digits + (abs(value) >= 10**digits):,} digits"
    if isinstance(value, str | bytes):
        return _cut(repr(value[: 2 * _LONGEST_SHOWN]))
    if (
        value is None
        or isinstance(value, bool | Real | Decimal | Path)
        or type(value) in (list, tuple, dict, set)
    ):
        try:
            return _cut(" ".join(repr(value).split()))
        except Exception:  # what somebody else's class, or a number too long to be written, makes of repr
            return f"a {type(value).__name__}"
    return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def listed(value: Any, limit: int, *, hashable: bool = False) -> list[Any]:
    """What a collection holds, read no further than a limit.

    Args:
        value: Neither a string nor a mapping.
        limit: How many values there may be.
        hashable: Whether they are to be kept in a dictionary.

    Raises:
        Unfit: If it is no collection, or empty, or larger.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise Unfit
    try:
        found = list(islice(value, limit + 1))
    except TypeError:  # such as a tensor without dimensions
        raise Unfit from None
    if not found:
        raise Unfit("is empty")
    if len(found) > limit:
        raise Unfit(f"holds more than {limit:,} values")
    if hashable and any(getattr(type(one), "__hash__", None) is None for one in found):
        raise Unfit
    return found
