"""What saved JSON and tensors have to be: pydantic models of the one, :class:`TensorSchema` of the other.

``Field`` is pydantic's; imported from here, a missing pydantic is said with what installs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import torch
from torch import Tensor

from fenchel.errors import MissingExtraError

try:
    from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
    from pydantic import Field as Field
except ImportError as error:
    raise MissingExtraError("pydantic", "hf") from error

__all__ = [
    "STRICT",
    "Digest",
    "Mismatch",
    "Name",
    "OpenRecord",
    "Place",
    "Positive",
    "Record",
    "Seed",
    "Shown",
    "TensorSchema",
    "Whole",
    "check_json",
    "check_tensors",
]

_LONGEST_SHOWN = 60

STRICT = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
"""These fields, of these types and no others: what :class:`Record` and dataclasses that are saved are checked by."""

Whole = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number from 0 on."""

Place = Annotated[int, Field(ge=1, lt=2**63)]
"""A whole number from 1 on: a size, or a place that is counted from 1."""

Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
"""What ``torch.manual_seed`` takes."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above 0."""

Name = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
"""The hexadecimal digits of a SHA-256."""


class Record(BaseModel):
    """What is saved as a JSON object: these fields, of these types and no others."""

    model_config = STRICT


class OpenRecord(Record):
    """A :class:`Record` that may have more fields, such as those of a later version."""

    model_config = ConfigDict(extra="allow")


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


@cache
def _adapter(expected: Any) -> TypeAdapter[Any]:
    """Made once: making it takes longer than a check."""
    return TypeAdapter(expected)


def check_json(expected: Any, value: Any, where: str = "") -> Any:
    """Check a value that was read from JSON.

    Args:
        expected: A :class:`Record`, or another type that pydantic knows.
        value: The value.
        where: Its place, for the error.

    Returns:
        The value as an object of that type.

    Raises:
        Mismatch: If it is of another type; of several places that differ, the first is named.
    """
    try:
        return _adapter(expected).validate_json(json.dumps(value))  # JSON has lists where we have tuples
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        for part in first["loc"]:
            where += (
                f"[{part}]" if isinstance(part, int) else f"{'.' if where else ''}{part[:_LONGEST_SHOWN]}"
            )
        if first["type"] == "missing":
            raise Mismatch(where, Shown("missing"), "it to be there") from None
        if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            raise Mismatch(where, Shown("there"), "no field of that name") from None
        reason = first["msg"].removeprefix("Input should be ")
        raise Mismatch(where, first["input"], reason[0].lower() + reason[1:]) from None


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
