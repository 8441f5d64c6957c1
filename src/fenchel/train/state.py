"""Where a training is, besides its weights: what has been seen, how it went, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fenchel.storage.schema import (
    Mismatch,
    Shown,
    anything,
    listing,
    mapping,
    number,
    optional,
    record,
    whole,
)

__all__ = ["EPOCHS_SCHEMA", "STATE_SCHEMA", "EpochSums", "TrainState", "check_state"]

_LEAST_ZERO = number(least=0)

EPOCHS_SCHEMA = listing(
    record(
        {
            "epoch": whole(1),
            "train_loss": number(),
            "test_loss": optional(number()),
            "test_accuracy": optional(number(least=0, most=1)),
            "seconds": _LEAST_ZERO,
            "images_per_second": _LEAST_ZERO,
        },
        {"step": whole(1), "learning_rate": _LEAST_ZERO, "train_accuracy": number(least=0, most=1)},
        others=True,
    )
)
"""The records of a training's epochs."""

STATE_SCHEMA = record(
    {
        "step": whole(),
        "sums": record({"loss": number(), **dict.fromkeys(("correct", "images", "seconds"), _LEAST_ZERO)}),
        "epochs": EPOCHS_SCHEMA,
        "test_seconds": _LEAST_ZERO,
        "sessions": listing(mapping(anything)),
    }
)
"""What ``TrainState.to_json`` gives."""


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


def check_state(state: TrainState) -> None:
    """See that the epochs of a state follow each other and end before its step.

    Raises:
        Mismatch: If they do not.
    """
    if [record["epoch"] for record in state.epochs] != list(range(1, len(state.epochs) + 1)):
        raise Mismatch("state.epochs", Shown("not in order"), "every epoch from 1 on, once")
    if any(record.get("step", 0) > state.step for record in state.epochs):
        raise Mismatch("state.step", state.step, "no step before the end of an epoch that is done")
