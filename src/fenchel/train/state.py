"""Where a training is, besides its weights: what has been seen, how it went, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["EpochSums", "TrainState"]


@dataclass
class EpochSums:
    """Sums over the images of an epoch that have been trained on so far, over all processes.

    Attributes:
        loss: Of their losses.
        correct: Of those that were classified rightly.
        images: How many there are.
        seconds: Of training.
    """

    loss: float = 0.0
    correct: float = 0.0
    images: float = 0.0
    seconds: float = 0.0


@dataclass
class TrainState:
    """Everything that a training knows between two steps and that is no tensor.

    Attributes:
        step: Steps done.
        sums: Of the epoch under way.
        epochs: A record for each finished epoch.
        test_seconds: Time spent on tests.
        sessions: Where each session ran and at which step it began.
    """

    step: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    test_seconds: float = 0.0
    sessions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def test_accuracy(self) -> float | None:
        """That of the last test, if there was one."""
        tested = [record["test_accuracy"] for record in self.epochs if record["test_accuracy"] is not None]
        return tested[-1] if tested else None

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainState:
        """What ``to_json`` gave."""
        return cls(**{**values, "sums": EpochSums(**values["sums"])})
