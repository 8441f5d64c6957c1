"""Weights as short texts: whole numbers of 8 or 16 bits in base64."""

from __future__ import annotations

import base64
import binascii
import struct
from enum import Enum

from torch import Tensor

from fenchel.io.schema import Mismatch, Shown

__all__ = ["Packing", "check_packed", "packed", "packed_rows", "unpacked"]


class Packing(Enum):
    """How a weight w in [0, 1] becomes a whole number; the value is the number of bytes."""

    ROUGH = 1
    """round(255 √w): small weights keep their digits, and none is off by more than 0.004."""
    FINE = 2
    """round(65535 w), the low byte first."""


def packed(weights: Tensor, packing: Packing) -> str:
    """Weights in [0, 1], row after row, as a text.

    Example:
        >>> import torch
        >>> packed(torch.tensor([0.0, 1.0]), Packing.FINE)
        'AAD//w=='
    """
    return base64.b64encode(_bytes(_numbers(weights, packing), packing)).decode()


def packed_rows(weights: Tensor, packing: Packing) -> tuple[str, ...]:
    """Each row of weights (rows, n) as a text of its own."""
    numbers = _numbers(weights, packing)
    width = numbers.shape[-1] * packing.value
    content = _bytes(numbers, packing)
    return tuple(
        base64.b64encode(content[place : place + width]).decode() for place in range(0, len(content), width)
    )


def _numbers(weights: Tensor, packing: Packing) -> Tensor:
    weights = weights.detach().double().clamp(0, 1).cpu()
    return (weights.sqrt() * 255 if packing is Packing.ROUGH else weights * 65535).round().long()


def _bytes(numbers: Tensor, packing: Packing) -> bytes:
    values = numbers.flatten().tolist()
    return bytes(values) if packing is Packing.ROUGH else struct.pack(f"<{len(values)}H", *values)


def unpacked(text: str, packing: Packing) -> list[float]:
    """The weights of a text.

    Example:
        >>> import torch
        >>> [round(w, 6) for w in unpacked(packed(torch.tensor([0.25, 1e-4]), Packing.ROUGH), Packing.ROUGH)]
        [0.251965, 0.000138]
    """
    numbers = base64.b64decode(text, validate=True)
    if packing is Packing.ROUGH:
        return [(number / 255) ** 2 for number in numbers]
    return [(low + 256 * high) / 65535 for low, high in zip(numbers[::2], numbers[1::2], strict=True)]


def check_packed(text: str, count: int, where: str, packing: Packing) -> None:
    """See that a text holds so many weights.

    Raises:
        Mismatch: If it does not.
    """
    try:
        found = len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise Mismatch(where, text, "base64") from error
    if found != count * packing.value:
        raise Mismatch(where, Shown(f"{found} bytes"), f"{packing.value} for each of {count} weights")
