"""Whoever is told how a training goes; nobody by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fenchel.runs.observer import RunObserver
from fenchel.runs.observer import SilentObserver as SilentRunObserver
from fenchel.train.progress import Progress

__all__ = ["SilentObserver", "TrainObserver"]


class TrainObserver(RunObserver[Progress], Protocol):
    """Shows a training. Told things in the first process only, where there are several.

    ``started`` is given what ``results.json`` begins with; ``advanced`` is called after every step, on
    accelerators after some. A ``KeyboardInterrupt`` raised by ``advanced`` stops the training after it has been saved.
    """

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress, /) -> None:
        """An epoch has ended, been tested if it was its turn, and been written to ``results.json``."""


class SilentObserver(SilentRunObserver):
    """Shows nothing."""

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress, /) -> None:
        """See ``TrainObserver``."""
