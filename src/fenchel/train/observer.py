"""Whoever is told how a training goes; nobody by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fenchel.train.progress import Progress

__all__ = ["SilentObserver", "TrainObserver"]


class TrainObserver(Protocol):
    """Shows a training. Told things in the first process only, where there are several.

    A ``KeyboardInterrupt`` raised by ``advanced`` stops the training after it has been saved.
    """

    def started(self, description: Mapping[str, Any]) -> None:
        """The first step is about to be taken; ``description`` is what ``results.json`` begins with."""

    def advanced(self, progress: Progress) -> None:
        """A step has been taken; on accelerators, some steps."""

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress) -> None:
        """An epoch has ended, been tested if it was its turn, and been written to ``results.json``."""

    def finished(self) -> None:
        """The training has ended or was interrupted: nothing more will be told."""


class SilentObserver:
    """Shows nothing."""

    def started(self, description: Mapping[str, Any]) -> None:
        """See ``TrainObserver``."""

    def advanced(self, progress: Progress) -> None:
        """See ``TrainObserver``."""

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress) -> None:
        """See ``TrainObserver``."""

    def finished(self) -> None:
        """See ``TrainObserver``."""
