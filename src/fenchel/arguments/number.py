"""Rules for numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from fenchel.arguments.rule import AbstractRule, Unfit, listed, shown

__all__ = ["Number", "Numbers", "NumbersFromOne", "Whole"]

_FLOAT32_LEAST = 2.0**-126  # below it digits are lost one by one
_FLOAT32_MOST = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class Whole(AbstractRule):
    """A whole number in a range; True and False are none.

    Attributes:
        least: The smallest.
        most: The largest.
        example: One of them.
        unit: What is counted, such as "of bytes".
    """

    least: int
    most: int
    example: str
    unit: str = ""

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        unit = f" {self.unit}" if self.unit else ""
        return f"a whole number{unit} from {self.least:,} to {self.most:,}, such as {self.example}"

    def fit(self, value: Any) -> int:
        """See ``AbstractRule``."""
        # Almost every number is of this type, and the check of an abstract one takes most of the time of a call.
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise Unfit
        number = int(value)
        if not self.least <= number <= self.most:
            raise Unfit
        return number


@dataclass(frozen=True)
class Number(AbstractRule):
    """A finite number in a range; True and False are none.

    Attributes:
        example: One of them.
        above: All are larger.
        least: All are at least that.
        below: All are smaller.
        most: All are at most that.
        in_float32: Whether float32 has to hold it, neither as infinity nor, if it is not 0, with fewer digits.
    """

    example: str
    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf
    in_float32: bool = False

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (
                ("above", self.above),
                ("at least", self.least),
                ("below", self.below),
                ("at most", self.most),
            )
            if math.isfinite(bound)
        ]
        words = f"a finite number {' and '.join(bounds)}".rstrip()
        return f"{words}{' that float32 can hold' if self.in_float32 else ''}, such as {self.example}"

    def fit(self, value: Any) -> float:
        """See ``AbstractRule``."""
        number = value if type(value) is float else _as_float(value)
        # False for NaN, and for infinity where there are no bounds too; numbers of a graph have no isfinite.
        if not self.above < number < self.below:
            raise Unfit
        if not self.least <= number <= self.most:
            raise Unfit
        if self.in_float32 and number and not _FLOAT32_LEAST <= abs(number) <= _FLOAT32_MOST:
            raise Unfit
        return number


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise Unfit
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise Unfit from None


@dataclass(frozen=True)
class Numbers(AbstractRule):
    """One number or more, each by one rule.

    Attributes:
        rule: For each.
        example: Some of them.
        limit: How many there may be.
    """

    rule: Number
    example: str
    limit: int = 1000

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"1 to {self.limit:,} numbers, each {self.rule.expected.partition(',')[0]}, such as {self.example}"

    def fit(self, value: Any) -> tuple[float, ...]:
        """See ``AbstractRule``."""
        return tuple(_member(one, self.rule) for one in listed(value, self.limit))


@dataclass(frozen=True)
class NumbersFromOne(AbstractRule):
    """Whole numbers from 1, such as those of layers; given in any order, taken in order and each once.

    Attributes:
        most: The largest.
    """

    most: int

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"whole numbers from 1 to {self.most:,}, such as [1, 2], or None for all"

    def fit(self, value: Any) -> tuple[int, ...] | None:
        """See ``AbstractRule``."""
        if value is None:
            return None
        rule = Whole(1, self.most, "1")
        return tuple(sorted({_member(one, rule) for one in listed(value, self.most)}))


def _member(value: Any, rule: AbstractRule) -> Any:
    """One of several values by their rule."""
    try:
        return rule.fit(value)
    except Unfit:
        raise Unfit(f"holds {shown(value)}") from None
