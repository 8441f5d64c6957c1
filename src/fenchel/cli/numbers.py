"""Lists of numbers as people type them, such as ``1,3-5`` and ``0.5,0.8``."""

from __future__ import annotations

import re

import typer

from fenchel.arguments import MOST_LAYERS, shown

__all__ = ["decimals", "numbers"]

# Nine digits are more than any layer's number has, and few enough to be read as a number.
_PART = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")


def numbers(text: str | None, option: str | None = None) -> list[int] | None:
    """Reads numbers and ranges, separated by commas.

    Args:
        text: Such as ``1,3-5``; None is passed on.
        option: Where it was given, for the message.

    Returns:
        The numbers in order, each once.

    Raises:
        typer.BadParameter: If the text is anything else.

    Example:
        >>> numbers("7,1,3-5,4")
        [1, 3, 4, 5, 7]
    """
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise typer.BadParameter(
                f"{shown(text)} is not a list of numbers and ranges, such as 1,3-5.", param_hint=option
            )
        if last > MOST_LAYERS:
            raise typer.BadParameter(
                f"{shown(text)} goes up to {last:,}; expected numbers from 1 to {MOST_LAYERS:,}.",
                param_hint=option,
            )
        found.update(range(first, last + 1))
    return sorted(found)


def decimals(text: str, option: str | None = None) -> list[float]:
    """Reads decimal numbers, separated by commas.

    Args:
        text: Such as ``0.5,0.8``.
        option: Where it was given, for the message.

    Returns:
        The numbers, as they come.

    Raises:
        typer.BadParameter: If the text is anything else.

    Example:
        >>> decimals("0.5, 0.8,1")
        [0.5, 0.8, 1.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{shown(text)} is not a list of numbers, such as 0.5,0.8.", param_hint=option
        ) from None
