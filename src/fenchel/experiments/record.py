"""What is kept of one finished run: what it came to, its curves, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.train.task import AnyTask

__all__ = ["CURVE_DECIMALS", "SECONDS_DECIMALS", "RunRecord", "machines"]

CURVE_DECIMALS = 5
"""Of curves in files."""

SECONDS_DECIMALS = 1
"""Of times in files."""


@dataclass(frozen=True)
class RunRecord:
    """One finished run.

    Attributes:
        data: Name of the data set.
        learning_rate: The greatest of the schedule.
        arm: Name of the arm.
        seed: Its seed.
        headline: What the task is judged by, on the test examples after the last epoch; no epoch is chosen by it.
        parameters: How many the model has.
        seconds: Time of training and testing.
        per_second: Speed of training, in examples.
        machine: Device, processes, precision and versions it ran with.
        curves: By name, one value an epoch, None where an epoch was not tested: ``train_loss``, ``test_loss`` and so
            on.
    """

    data: str
    learning_rate: float
    arm: str
    seed: int
    headline: float
    parameters: int
    seconds: float
    per_second: float
    machine: Mapping[str, Any]
    curves: Mapping[str, tuple[float | None, ...]]

    def to_json(self, task: type[AnyTask]) -> dict[str, Any]:
        """The record as JSON, curves rounded to five decimals; what it is judged by has its name."""
        written = asdict(self)
        written[f"test_{task.headline}"] = written.pop("headline")
        written[f"{task.unit}_per_second"] = round(written.pop("per_second"), 1)
        written["curves"] = {
            name: [None if value is None else round(value, CURVE_DECIMALS) for value in values]
            for name, values in self.curves.items()
        }
        written["seconds"] = round(self.seconds, SECONDS_DECIMALS)
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any], task: type[AnyTask]) -> RunRecord:
        """The record that ``to_json`` wrote."""
        values = dict(written)
        return cls(
            headline=values.pop(f"test_{task.headline}"),
            per_second=values.pop(f"{task.unit}_per_second"),
            curves={name: tuple(curve) for name, curve in values.pop("curves").items()},
            **values,
        )


def machines(records: Iterable[RunRecord]) -> tuple[str, ...]:
    """What runs were trained on, each machine once, in words."""
    return tuple(dict.fromkeys(_machine(record) for record in records))


def _machine(record: RunRecord) -> str:
    machine = record.machine
    device = str(machine.get("device", "an unknown device"))
    processes, threads = machine.get("processes", 1), machine.get("threads")
    parts = [device if device == "cpu" else f"{machine.get('device_name', device)}"]
    if device == "cpu" and threads is not None:
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    if processes != 1:
        parts.append(f"{processes} processes")
    return ", ".join([*parts, str(machine.get("precision", "unknown precision"))])
