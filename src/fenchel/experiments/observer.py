"""Whoever is told how an experiment goes; nobody by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fenchel.experiments.plan import Run
from fenchel.experiments.record import RunRecord
from fenchel.train.observer import SilentObserver, TrainObserver

__all__ = ["ExperimentObserver", "Position", "SilentExperimentObserver"]


@dataclass(frozen=True)
class Position:
    """Where a run stands among those of this process.

    Attributes:
        number: From 1.
        count: How many there are.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"run {self.number} of {self.count}"


class ExperimentObserver(Protocol):
    """Shows an experiment. Told things in the first process only, where there are several."""

    def began(self, run: Run, position: Position) -> TrainObserver:
        """A run is about to be trained; returns who is told about its training."""
        ...

    def kept(self, run: Run, position: Position, record: RunRecord) -> None:
        """A run had finished before."""
        ...

    def ended(self, run: Run, position: Position, record: RunRecord) -> None:
        """A run has finished."""
        ...

    def diverged(self, run: Run, position: Position, reason: str) -> None:
        """A run has no result: its loss became infinite, now or when it was tried before."""
        ...

    def left(self, run: Run, position: Position) -> None:
        """A run is being trained by another process."""
        ...


class SilentExperimentObserver:
    """Shows nothing."""

    def began(self, run: Run, position: Position) -> TrainObserver:
        """See ``ExperimentObserver``."""
        return SilentObserver()

    def kept(self, run: Run, position: Position, record: RunRecord) -> None:
        """See ``ExperimentObserver``."""

    def ended(self, run: Run, position: Position, record: RunRecord) -> None:
        """See ``ExperimentObserver``."""

    def diverged(self, run: Run, position: Position, reason: str) -> None:
        """See ``ExperimentObserver``."""

    def left(self, run: Run, position: Position) -> None:
        """See ``ExperimentObserver``."""
