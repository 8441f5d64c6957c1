"""Sizes, numbers and flags that modules are built with."""

from __future__ import annotations

from typing import Any

import torch

from fenchel.arguments import ARGUMENTS, OneOf, shown
from fenchel.arguments.tensor import FLOATING, checked_argument
from fenchel.errors import ProblemError

__all__ = ["check_choice", "check_grid", "check_parameters", "check_pixels", "check_positive", "check_sizes"]

# Where the table has a rule for a size under another name; else it is that for any size.
_RULES = {"max_steps": "max_steps", "width": "width", "heads": "head_count", "num_heads": "head_count"}


def check_sizes(owner: str, **sizes: Any) -> None:
    """Every size is a whole number of at least 1, and not beyond what any layer has.

    Raises:
        ProblemError: Naming the argument, its owner and what was got.

    Example:
        >>> check_sizes("ALiBi", heads=2.5)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: heads of ALiBi is 2.5; expected a whole number from 1 to 65,536, such as 8.
    """
    for name, size in sizes.items():
        checked_argument(_RULES.get(name, "size"), size, name=f"{name} of {owner}")


def check_positive(owner: str, **numbers: Any) -> None:
    """Every number is finite and above 0, in float32 too.

    Raises:
        ProblemError: Naming the argument, its owner and what was got.
    """
    for name, number in numbers.items():
        rule = name if name in ARGUMENTS and name not in ("width", "scale") else "positive"
        checked_argument(rule, number, name=f"{name} of {owner}")


def check_grid(owner: str, grid: Any) -> tuple[int, int]:
    """Rows and columns of a grid of places.

    Raises:
        ProblemError: Naming the owner and what was got.

    Example:
        >>> check_grid("GridWindow", 14)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: grid of GridWindow is 14; expected two numbers, rows and columns, such as (14, 14).
    """
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise ProblemError(
            f"grid of {owner} is {shown(grid)}; expected two numbers, rows and columns, such as (14, 14)."
        )
    for name, size in zip(("rows", "columns"), grid, strict=True):
        checked_argument("size", size, name=f"{name} of the grid of {owner}")
    return grid[0], grid[1]


def check_pixels(owner: str, grid: tuple[int, int], keys: int, last: int) -> None:
    """Keys are all pixels of a grid, and queries no more.

    Args:
        owner: Who was built with the grid.
        grid: Rows and columns.
        keys: How many there are.
        last: Place of the last query, from 1.

    Raises:
        ProblemError: Naming the numbers that were got, and the grid.
    """
    pixels = grid[0] * grid[1]
    if keys != pixels or last > pixels:
        raise ProblemError(
            f"there are {keys} keys, and queries up to place {last} (counted from 1); expected the {pixels} pixels of "
            f"the grid {grid[0]} x {grid[1]} that {owner} was built with."
        )


def check_choice(owner: str, choices: tuple[str, ...], **names: Any) -> None:
    """Every name is one of some.

    Raises:
        ProblemError: Naming the argument, its owner and what was got.
    """
    for argument, name in names.items():
        OneOf(choices).check(f"{argument} of {owner}", name, ProblemError)


def check_parameters(owner: str, device: Any, dtype: Any) -> None:
    """Where parameters are to be, and in what; None is torch's default.

    Raises:
        ProblemError: If there is no such device here, or the dtype is not one to compute in.
    """
    if dtype is not None and dtype not in FLOATING:
        raise ProblemError(
            f"dtype of {owner} is {shown(dtype)}; expected one of {', '.join(map(str, FLOATING))}, or None"
        )
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except Exception:  # which type it is depends on the name, and on the build of torch
        raise ProblemError(
            f"device of {owner} is {shown(device)}, which torch does not have here; expected one that it has, such as "
            "'cpu', or None"
        ) from None
