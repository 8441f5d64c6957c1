"""What an experiment records of a data set: enough to report without it, and to notice that it is another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fenchel.train.task import AnyTask, DataSummary

__all__ = ["DataDescription", "described"]


@dataclass(frozen=True)
class DataDescription:
    """A data set in a few words.

    Attributes:
        name: As users type it.
        unit: What its examples are, in the plural.
        summary: How many there are, and which.
    """

    name: str
    unit: str
    summary: DataSummary

    def __str__(self) -> str:
        """The numbers and the beginning of the digest."""
        found = self.summary
        return f"{found.train:,} + {found.test:,} {self.unit} ({found.digest[:12]})"

    def to_json(self) -> dict[str, Any]:
        """The description as JSON."""
        found = self.summary
        return {
            "name": self.name,
            f"train_{self.unit}": found.train,
            f"test_{self.unit}": found.test,
            "classes": found.classes,
            "note": found.note,
            "digest": found.digest,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any], unit: str) -> DataDescription:
        """The description that ``to_json`` wrote."""
        counts = written[f"train_{unit}"], written[f"test_{unit}"]
        return cls(
            written["name"],
            unit,
            DataSummary(*counts, written["classes"], written["note"], written["digest"]),
        )


def described(name: str, task: type[AnyTask], data: Any) -> DataDescription:
    """What is recorded of a data set.

    Args:
        name: As users type it.
        task: What is trained on it.
        data: As ``Task.read`` gives it.

    Returns:
        The description.
    """
    return DataDescription(name, task.unit, task.summary(data))
