"""What an experiment shows: all that its tables, figures and pages are made of."""

from __future__ import annotations

from dataclasses import dataclass

from fenchel.experiments.arm import Arm
from fenchel.experiments.cell import Cell
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.record import RunRecord

__all__ = ["Results"]


@dataclass(frozen=True)
class Results:
    """The results of an experiment as they are shown.

    Attributes:
        title: What the experiment reproduces or asks, on which budget.
        of: What is compared.
        arms: Those of the plan.
        cells: The lines of the table.
        records: The finished runs.
        planned: How many runs there are to be.
        finished: Whether all of them have ended.
        findings: What the intervals show, in sentences.
        caveats: What must be known of the numbers, in sentences.
    """

    title: str
    of: Comparison
    arms: tuple[Arm, ...]
    cells: tuple[Cell, ...]
    records: tuple[RunRecord, ...]
    planned: int
    finished: bool
    findings: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def base(self) -> str:
        """The baseline as tables show it."""
        return self.of.arms[self.of.baseline].label
