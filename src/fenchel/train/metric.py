"""What is measured of a model, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Metric"]


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is.

    Attributes:
        name: As files call it, after the examples that it is of: ``accuracy`` is in them as ``train_accuracy`` and
            ``test_accuracy``.
        unit: What it counts, as an axis shows it.
        higher_is_better: Whether more is better.
        least: What it is at least.
        most: What it is at most.
    """

    name: str
    unit: str
    higher_is_better: bool
    least: float = -math.inf
    most: float = math.inf

    @property
    def range(self) -> str:
        """What it can be, in words.

        Example:
            >>> Metric("accuracy", "", True, 0.0, 1.0).range, Metric("loss", "", False, 0.0).range
            ('from 0 to 1', 'at least 0')
        """
        ends = math.isfinite(self.least), math.isfinite(self.most)
        if all(ends):
            return f"from {self.least:g} to {self.most:g}"
        return (
            f"at least {self.least:g}" if ends[0] else f"at most {self.most:g}" if ends[1] else "any number"
        )

    @property
    def title(self) -> str:
        """The name as a heading."""
        return self.name.replace("_", " ").capitalize()
