"""Weights as short texts: whole numbers of 8 or 16 bits in base64."""

from __future__ import annotations

import base64
import binascii
from enum import Enum

import torch
from torch import Tensor

from fenchel.storage.schema import Mismatch, Shown

__all__ = ["Packing", "check_packed", "packed", "unpacked"]


class Packing(Enum):
    """How a weight w in [0, 1] becomes a whole number; the value is the number of bytes."""

    ROUGH = 1
    """round(255 √w): small weights keep their digits, and none is off by more than 0.004."""
    FINE = 2
    """round(65535 w), the low byte first."""


def packed(weights: Tensor, packing: Packing) -> str:
    """Weights in [0, 1], row after row, as a text.

    Example:
        >>> packed(torch.tensor([0.0, 1.0]), Packing.FINE)
        'AAD//w=='
    """
    weights = weights.detach().double().clamp(0, 1).flatten().cpu()
    if packing is Packing.ROUGH:
        numbers = (weights.sqrt() * 255).round().long()
    else:
        whole = (weights * 65535).round().long()
        numbers = torch.stack((whole % 256, whole // 256), -1).flatten()
    return base64.b64encode(bytes(numbers.tolist())).decode()


def unpacked(text: str, packing: Packing) -> list[float]:
    """The weights of a text.

    Example:
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
