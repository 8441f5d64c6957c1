"""What is kept of one finished run: its accuracy, its curves, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.experiments.arm import ARMS
from fenchel.storage.schema import anything, listing, mapping, number, optional, record, text, whole

__all__ = ["RECORD_SCHEMA", "RunRecord"]

_CURVE = listing(optional(number()))

RECORD_SCHEMA = record(
    {
        "data": text(),
        "learning_rate": number(above=0),
        "arm": text(among=ARMS),
        "seed": whole(),
        "test_accuracy": number(least=0, most=1),
        "parameters": whole(),
        "seconds": number(least=0),
        "images_per_second": number(least=0),
        "machine": mapping(anything),
        "curves": record(dict.fromkeys(("train_loss", "test_loss", "test_accuracy"), _CURVE)),
    }
)
"""What ``RunRecord.to_json`` gives."""

_DECIMALS = 5


@dataclass(frozen=True)
class RunRecord:
    """One finished run.

    Attributes:
        data: Name of the data set.
        learning_rate: The greatest of the schedule.
        arm: Name of the arm.
        seed: Its seed.
        test_accuracy: After the last epoch; no epoch is chosen by it.
        parameters: How many the model has.
        seconds: Time of training and testing.
        images_per_second: Speed of training.
        machine: Device, processes, precision and versions it ran with.
        curves: By name, one value an epoch, None where an epoch was not tested: ``train_loss``, ``test_loss``,
            ``test_accuracy``.
    """

    data: str
    learning_rate: float
    arm: str
    seed: int
    test_accuracy: float
    parameters: int
    seconds: float
    images_per_second: float
    machine: Mapping[str, Any]
    curves: Mapping[str, tuple[float | None, ...]]

    def to_json(self) -> dict[str, Any]:
        """The record as JSON, curves rounded to five decimals."""
        written = asdict(self)
        written["curves"] = {
            name: [None if value is None else round(value, _DECIMALS) for value in values]
            for name, values in self.curves.items()
        }
        written["seconds"] = round(self.seconds, 1)
        written["images_per_second"] = round(self.images_per_second, 1)
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> RunRecord:
        """The record that ``to_json`` wrote."""
        curves = {name: tuple(values) for name, values in written["curves"].items()}
        return cls(**{**written, "curves": curves})
