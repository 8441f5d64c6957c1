"""What JSON and tensors have to be, as values that say it and check it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Check",
    "Mismatch",
    "Shown",
    "TensorSchema",
    "check_tensors",
    "listing",
    "mapping",
    "number",
    "optional",
    "record",
    "text",
    "truth",
    "whole",
]

_LARGEST_WHOLE = 2**63 - 1
_LONGEST_SHOWN = 60


class Mismatch(Exception):  # noqa: N818 - it is not what users see
    """A value is not what its schema says.

    Args:
        where: Its place, such as ``manifest.alpha``.
        found: What it is.
        expected: What it should be.
    """

    def __init__(self, where: str, found: object, expected: str) -> None:
        shown = found if isinstance(found, Shown) else repr(found)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[:_LONGEST_SHOWN]}..."
        super().__init__(f"{where or 'it'} is {shown}; expected {expected}")


class Shown(str):
    """A description of a value, shown as it is and not as a string."""

    __slots__ = ()


Check = Callable[[Any, str], None]
"""Raises ``Mismatch`` unless a value, whose place is the second argument, is as it should be."""


def truth() -> Check:
    """True or false."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, bool):
            raise Mismatch(where, value, "true or false")

    return check


def whole(least: int = 0, most: int = _LARGEST_WHOLE) -> Check:
    """A whole number between two, both included."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            bound = "" if most == _LARGEST_WHOLE else f" and at most {most}"
            raise Mismatch(where, value, f"a whole number that is at least {least}{bound}")

    return check


def number(*, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> Check:
    """A finite number in a range."""

    def check(value: Any, where: str) -> None:
        known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        if known and value > above and least <= value <= most:
            return
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("above", above), ("at least", least), ("at most", most))
            if math.isfinite(bound)
        ]
        raise Mismatch(where, value, " ".join(["a finite number", " and ".join(bounds)]).strip())

    return check


def text(
    *, among: Collection[str] | None = None, pattern: str | None = None, called: str = "a text"
) -> Check:
    """A text, one of some, or of a pattern that ``called`` describes."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or (
            pattern is not None and not re.fullmatch(pattern, value, re.DOTALL)
        ):
            raise Mismatch(where, value, called)
        if among is not None and value not in among:
            raise Mismatch(where, value, f"one of {', '.join(among)}")

    return check


def optional(check: Check) -> Check:
    """What ``check`` lets pass, or null."""

    def check_or_null(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return check_or_null


def listing(check: Check, *, least: int = 0, most: int | None = None) -> Check:
    """A list, so long, of what ``check`` lets pass."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise Mismatch(where, value, "a list")
        if len(value) < least or (most is not None and len(value) > most):
            bound = "" if most is None else f" and at most {most}"
            raise Mismatch(where, Shown(f"a list of {len(value)}"), f"at least {least}{bound} entries")
        for index, entry in enumerate(value):
            check(entry, f"{where}[{index}]")

    return check_all


def mapping(check: Check) -> Check:
    """An object whose values ``check`` lets pass, whatever the keys."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Mismatch(where, value, "an object")
        for name, entry in value.items():
            check(entry, _inside(where, name))

    return check_all


def record(
    required: Mapping[str, Check], maybe: Mapping[str, Check] | None = None, *, others: bool = False
) -> Check:
    """An object with these keys.

    Args:
        required: What must be there.
        maybe: What may be.
        others: Whether there may be more.
    """
    known = {**required, **(maybe or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Mismatch(where, value, "an object")
        for name in required:
            if name not in value:
                raise Mismatch(_inside(where, name), Shown("missing"), "it to be there")
        for name, entry in value.items():
            if name in known:
                known[name](entry, _inside(where, name))
            elif not others:
                raise Mismatch(_inside(where, name), Shown("there"), f"only {', '.join(known)}")

    return check


@dataclass(frozen=True)
class TensorSchema:
    """What a tensor has to be.

    Attributes:
        dtypes: One of them.
        shape: Its sizes: numbers, or names that stand for the same number in every tensor that is checked together.
        least: What no entry may be below; None for no bound.
        finite: Whether infinities are refused; NaN always is.
        rising: Whether every entry must be above the one before.
    """

    dtypes: tuple[torch.dtype, ...]
    shape: tuple[int | str, ...]
    least: float | None = None
    finite: bool = True
    rising: bool = False


def check_tensors(
    tensors: Mapping[str, Tensor], schema: Mapping[str, TensorSchema], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """See that tensors are those of a schema, no more and no fewer.

    Args:
        tensors: By name.
        schema: By name.
        sizes: What named dimensions are, as far as known.

    Returns:
        What all named dimensions are.

    Raises:
        Mismatch: If a tensor is missing, unknown, or not what the schema says.
    """
    missing, unknown = sorted(set(schema) - set(tensors)), sorted(set(tensors) - set(schema))
    if missing:
        raise Mismatch(f"tensor {missing[0]}", Shown("missing"), "it to be there")
    if unknown:
        raise Mismatch(f"tensor {unknown[0]}", Shown("there"), "no tensor of that name")
    known = dict(sizes or {})
    for name, expected in schema.items():
        _check_tensor(f"tensor {name}", tensors[name], expected, known)
    return known


def _check_tensor(where: str, tensor: Tensor, expected: TensorSchema, sizes: dict[str, int]) -> None:
    if tensor.dtype not in expected.dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in expected.dtypes)
        raise Mismatch(where, Shown(f"of {str(tensor.dtype).removeprefix('torch.')}"), names)
    shape = tuple(tensor.shape)
    if len(shape) == len(expected.shape):
        for name, size in zip(expected.shape, shape, strict=True):
            if isinstance(name, str):
                sizes.setdefault(name, size)
    wanted = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in expected.shape)
    if shape != wanted:
        raise Mismatch(where, Shown(f"of shape {shape}"), f"({', '.join(map(str, wanted))})")
    if not tensor.numel():
        return
    if tensor.is_floating_point():
        if expected.finite and not bool(tensor.isfinite().all()):
            raise Mismatch(where, Shown("not finite everywhere"), "finite numbers")
        if bool(tensor.isnan().any()):
            raise Mismatch(where, Shown("not a number (NaN) somewhere"), "numbers")
    if expected.least is not None and not bool((tensor >= expected.least).all()):
        raise Mismatch(
            where, Shown(f"{tensor.min().item()} somewhere"), f"at least {expected.least:g} everywhere"
        )
    if expected.rising and not bool((tensor[1:] > tensor[:-1]).all()):
        raise Mismatch(where, Shown("not in rising order"), "each entry above the one before")


def _inside(where: str, name: str) -> str:
    return f"{where}.{name[:_LONGEST_SHOWN]}" if where else name[:_LONGEST_SHOWN]
