"""How far a training is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Attributes:
        epoch: The epoch under way, from 1.
        epochs: How many there are.
        step: Steps done, those of earlier sessions included.
        steps: How many there are.
        measures: What is measured in training, means over the epoch so far: ``loss``, and for classifiers ``accuracy``.
        unit: What examples are: ``images``.
        per_second: Examples that are trained on in a second of this session.
        seconds_left: Time to the end at this session's speed, or None before it can be told.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    measures: Mapping[str, float]
    unit: str
    per_second: float
    seconds_left: float | None
