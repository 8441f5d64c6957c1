"""Checks of the arguments with which modules are built, and their representation."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from fenchel.arguments import ARGUMENTS, one_of, shown
from fenchel.errors import ProblemError
from fenchel.tensors import check_floating, checked_argument

# Rules of sizes that differ from the general one.
_RULES = {"width": "width", "heads": "head_count", "num_heads": "head_count", "reach": "reach"}


def check_sizes(owner: str, **sizes: Any) -> None:
    """Raise unless every size is a whole number of at least 1, within the limits of layers.

    Raises:
        ProblemError: If not; the message names the argument, its owner and its value.

    Example:
        >>> check_sizes("ALiBi", heads=2.5)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: heads of ALiBi is 2.5; expected a whole number from 1 to 65,536, such as 8.
    """
    for name, size in sizes.items():
        checked_argument(_RULES.get(name, "size"), size, name=f"{name} of {owner}")


def check_positive(owner: str, **numbers: Any) -> None:
    """Raise unless every number is positive and finite, also in float32.

    Raises:
        ProblemError: If not; the message names the argument, its owner and its value.
    """
    for name, number in numbers.items():
        rule = name if name in ARGUMENTS and name not in ("width", "scale") else "positive"
        checked_argument(rule, number, name=f"{name} of {owner}")


def check_grid(owner: str, grid: Any, argument: str = "grid", rule: str = "size") -> tuple[int, int]:
    """Rows and columns of a grid, or of another argument with two sizes, each by a rule of the table.

    Raises:
        ProblemError: If not; the message names the owner and the value.

    Example:
        >>> check_grid("GridWindow", 14)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: grid of GridWindow is 14; expected two numbers, rows and columns, such as (14, 14).
    """
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise ProblemError(
            f"{argument} of {owner} is {shown(grid)}; expected two numbers, rows and columns, such as (14, 14)."
        )
    for name, size in zip(("rows", "columns"), grid, strict=True):
        checked_argument(rule, size, name=f"{name} of the {argument} of {owner}")
    return grid[0], grid[1]


def check_pixels(
    owner: str, grid: tuple[int, int], keys: int, last: int, padding: tuple[int, int] = (0, 0)
) -> None:
    """Raise unless the keys are all pixels of a grid, and the queries are pixels.

    Args:
        owner: Name of the module with the grid.
        grid: Rows and columns.
        keys: Number of keys.
        last: Position of the last query, from 1.
        padding: Number of rows and columns added to the grid of the keys on every side.

    Raises:
        ProblemError: If not; the message has these numbers and the grid.
    """
    (rows, columns), (up, left) = grid, padding
    pixels, padded = rows * columns, (rows + 2 * up) * (columns + 2 * left)
    if keys != padded or last > pixels:
        more = f" and a padding of {padding}: {padded} keys" if padded > pixels else ""
        raise ProblemError(
            f"there are {keys} keys, and queries up to position {last} (counted from 1); expected the {pixels} pixels "
            f"of the grid {rows} x {columns} that {owner} was built with{more}"
        )


def check_choice(owner: str, choices: tuple[str, ...], **names: Any) -> None:
    """Raise unless every name is one of the choices.

    Raises:
        ProblemError: If not; the message names the argument, its owner and its value.
    """
    for argument, name in names.items():
        one_of(*choices).check(f"{argument} of {owner}", name, ProblemError)


# Types of arguments with a short representation.
_PLAIN = (int, float, str, tuple, type(None))


def shown_arguments(module: nn.Module) -> str:
    """The arguments of a module, as stored under their names, that differ from the default.

    Example:
        >>> from fenchel.nn.preference import Window
        >>> shown_arguments(Window(2, None)), shown_arguments(Window(2, None, dilation=3))
        ('before=2, after=None', 'before=2, after=None, dilation=3')
    """
    stored = {name: repr(value) for name, value in vars(module).items() if isinstance(value, _PLAIN)}
    parameters = inspect.signature(type(module)).parameters.items()
    changed = [name for name, one in parameters if name in stored and stored[name] != repr(one.default)]
    return ", ".join(f"{name}={stored[name]}" for name in changed)


def check_layer(owner: str, *, device: Any, dtype: Any, dropout: float = 0.0, **sizes: Any) -> None:
    """Check the arguments shared with ``torch.nn.MultiheadAttention``; a device or dtype of None is torch's default.

    Raises:
        ProblemError: If one is invalid, the device is not available, or the dtype not supported.
    """
    given = {name: size for name, size in sizes.items() if size is not None or name not in ("kdim", "vdim")}
    check_sizes(owner, **given)
    embed_dim, num_heads = sizes["embed_dim"], sizes["num_heads"]
    if embed_dim % num_heads:
        raise ProblemError(
            f"embed_dim is {embed_dim} and num_heads is {num_heads}; expected a number of heads that divides the width"
        )
    checked_argument("dropout", dropout)
    if dtype is not None:
        check_floating(f"dtype of {owner}", dtype)
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except Exception:  # its type depends on the name, and on the build of torch
        raise ProblemError(
            f"device of {owner} is {shown(device)}, which is not available; expected an available device, such as "
            "'cpu', or None"
        ) from None
