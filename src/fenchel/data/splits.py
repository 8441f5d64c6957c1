"""The parts of a labelled set: what is trained on, validated on and tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Splits"]

PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Splits(Generic[PartT]):
    """What is trained on, validated on and tested on.

    Attributes:
        train: To train on.
        validation: To choose by; None where the data have no such part.
        test: To read once, at the end.
    """

    train: PartT
    validation: PartT | None
    test: PartT
