"""Sizes and numbers that modules are built with."""

from __future__ import annotations

import math

from fenchel.errors import ProblemError

__all__ = ["check_positive", "check_sizes"]


def check_sizes(owner: str, **sizes: int) -> None:
    """Every size is a whole number of at least 1.

    Raises:
        ProblemError: Naming the owner, the argument and what was got.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ProblemError(f"{owner} got {name}={size!r}; expected a whole number of at least 1.")


def check_positive(owner: str, **numbers: float) -> None:
    """Every number is finite and above 0.

    Raises:
        ProblemError: Naming the owner, the argument and what was got.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ProblemError(f"{owner} got {name}={number!r}; expected a finite number above 0.")
