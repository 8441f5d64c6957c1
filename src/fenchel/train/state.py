"""Where a training is, besides its weights: what has been seen, how it went, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fenchel.storage.schema import (
    Check,
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
from fenchel.train.task import AnyTask

__all__ = ["EPOCHS_SCHEMA", "STATE_SCHEMA", "EpochSums", "TrainState", "check_state", "epoch_schema"]

_LEAST_ZERO = number(least=0)

EPOCHS_SCHEMA = listing(
    record({"epoch": whole(1), "train_loss": number(), "seconds": _LEAST_ZERO}, others=True), most=10**6
)
"""The records of a training's epochs, as far as they are alike for all tasks; ``epoch_schema`` says the rest."""

STATE_SCHEMA = record(
    {
        "step": whole(),
        "sums": record({"count": _LEAST_ZERO, "seconds": _LEAST_ZERO, "values": mapping(number())}),
        "epochs": EPOCHS_SCHEMA,
        "test_seconds": _LEAST_ZERO,
        "sessions": listing(mapping(anything)),
    }
)
"""What ``TrainState.to_json`` gives."""


def epoch_schema(task: type[AnyTask]) -> Check:
    """What the record of an epoch holds of a task.

    Args:
        task: What was trained.
    """
    ranges = {metric.name: number(least=metric.least, most=metric.most) for metric in task.metrics}
    trained = {f"train_{name}": ranges[name] for name in task.trained if name != "loss" and name in ranges}
    tested = {f"{split}_{name}": optional(ranges[name]) for split in task.splits() for name in ranges}
    besides = {
        f"test_{metric.name}": optional(number(least=metric.least, most=metric.most))
        for metric in task.only_tested
    }
    return record(
        {f"{task.unit}_per_second": _LEAST_ZERO, **tested},
        {"step": whole(1), "learning_rate": _LEAST_ZERO, **trained, **besides},
        others=True,
    )


@dataclass
class EpochSums:
    """Sums over the examples of an epoch that have been trained on so far, over all processes.

    Attributes:
        count: How many examples.
        seconds: Of training.
        values: What the task measures in training, by name.
    """

    count: float = 0.0
    seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, values: Mapping[str, float], count: float, seconds: float) -> None:
        """Adds what further steps came to."""
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0.0) + value
        self.count += count
        self.seconds += seconds

    def means(self) -> dict[str, float]:
        """Of what is measured, over the examples."""
        return {name: value / self.count for name, value in self.values.items()}


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

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainState:
        """What ``to_json`` gave."""
        return cls(**{**values, "sums": EpochSums(**values["sums"])})


def check_state(state: TrainState, task: type[AnyTask]) -> None:
    """See that the epochs of a state are of a task, follow each other and end before its step.

    Raises:
        Mismatch: If they do not.
    """
    listing(epoch_schema(task))(state.epochs, "state.epochs")
    if [record["epoch"] for record in state.epochs] != list(range(1, len(state.epochs) + 1)):
        raise Mismatch("state.epochs", Shown("not in order"), "every epoch from 1 on, once")
    if any(record.get("step", 0) > state.step for record in state.epochs):
        raise Mismatch("state.step", state.step, "no step before the end of an epoch that is done")
    if state.sums.values and set(state.sums.values) != set(task.trained):
        raise Mismatch("state.sums.values", Shown("of other names"), ", ".join(task.trained))
