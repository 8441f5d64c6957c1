"""How far a training is."""

from __future__ import annotations

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
        loss: Mean training loss of the epoch so far.
        accuracy: Share of the epoch's images so far that were classified rightly, in training.
        images_per_second: Training speed of this session.
        seconds_left: Time to the end at this session's speed, or None before it can be told.
        test_accuracy: That of the last test, or None before the first.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float | None
    test_accuracy: float | None
