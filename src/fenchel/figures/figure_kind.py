"""What a figure is: a name, how its numbers are found, what is said of them, how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["DIGITS", "FigureKind", "Numbers", "rounded"]

DIGITS = 6
"""How many digits a number of a figure has: more than can be seen, fewer than differ from machine to machine."""

Numbers = Mapping[str, Any]
"""What a figure shows, as JSON has it."""


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be made.

    Attributes:
        name: As ``fenchel figure`` takes it.
        summary: What it shows, in a line.
        measure: Finds its numbers; takes an audit, or None where the figure is made of none.
        caption: Says what is seen and what it is made of, from the numbers.
        draw: Draws the numbers and nothing else.
        audit: Whether it is made of an audit: ``none``, ``optional`` or ``required``.
        needs: Packages beside matplotlib that it cannot do without where no audit is given, each with its extra.
    """

    name: str
    summary: str
    measure: Callable[[AuditResults | None], dict[str, Any]]
    caption: Callable[[Numbers], str]
    draw: Callable[[Numbers], Figure]
    audit: Literal["none", "optional", "required"] = "none"
    needs: tuple[tuple[str, str], ...] = ()


def rounded(value: Any) -> Any:
    """Numbers as they are drawn and written: six digits, tensors as lists, None for what is infinite or missing.

    Example:
        >>> rounded({"a": [0.123456789, float("inf")], "b": 2})
        {'a': [0.123457, None], 'b': 2}
    """
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
