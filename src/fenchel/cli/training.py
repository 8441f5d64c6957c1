"""The progress of a training: a bar on a terminal, one line an epoch anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from fenchel.train.observer import SilentObserver, TrainObserver
from fenchel.train.progress import Progress

__all__ = ["LineObserver", "TerminalObserver", "epoch_line", "observer_of_training", "state"]

_SPLITS = {"train_": "training", "validation_": "validation", "test_": "test"}
_BAR_WIDTH = 8  # so that everything fits into a line of 80


def observer_of_training() -> TrainObserver:
    """Shows progress on standard error: a bar if somebody can see it there, else a line an epoch."""
    if os.environ.get("RANK", "0") != "0":
        return SilentObserver()
    return TerminalObserver(Console(stderr=True)) if sys.stderr.isatty() else LineObserver()


class LineObserver:
    """Writes one line for each epoch to standard error."""

    def started(self, description: Mapping[str, Any]) -> None:
        """See ``TrainObserver``."""

    def advanced(self, progress: Progress) -> None:
        """See ``TrainObserver``."""

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress) -> None:
        """Writes the epoch's line."""
        print(epoch_line(record, progress), file=sys.stderr, flush=True)  # noqa: T201

    def finished(self) -> None:
        """See ``TrainObserver``."""


class TerminalObserver:
    """A bar with what is measured, examples a second and the time left; the epochs' lines stay above it.

    Args:
        console: Where to draw it.
    """

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR_WIDTH),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._task = self._bar.add_task("training", total=None, state="")

    def started(self, description: Mapping[str, Any]) -> None:
        """Begins to draw."""
        self._bar.update(self._task, description=f"training {description['model']['name']}")
        self._bar.start()

    def advanced(self, progress: Progress) -> None:
        """Draws how far the training is."""
        self._bar.update(
            self._task,
            description=f"epoch {progress.epoch}/{progress.epochs}",
            total=progress.steps,
            completed=progress.step,
            state=state(progress),
        )

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress) -> None:
        """Leaves the epoch's line above the bar."""
        self.advanced(progress)
        self._bar.console.print(epoch_line(record, progress), markup=False, highlight=False, soft_wrap=True)

    def finished(self) -> None:
        """Leaves the last state on the screen."""
        self._bar.stop()


def state(progress: Progress) -> str:
    """How far a training is, in words.

    Example:
        >>> state(Progress(2, 5, 150, 500, {"loss": 0.512, "accuracy": 0.8231}, "images", 803.2, 95.0))
        'loss 0.512, accuracy 0.823, 803 images/s, 1:35 left'
    """
    parts = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in progress.measures.items()]
    parts.append(f"{progress.per_second:,.0f} {progress.unit}/s")
    if progress.seconds_left is not None:
        parts.append(f"{_clock(progress.seconds_left)} left")
    return ", ".join(parts)


def epoch_line(record: Mapping[str, Any], progress: Progress) -> str:
    """What an epoch came to, in words."""
    parts: list[str] = []
    for split, words in _SPLITS.items():
        measured = [
            f"{name.removeprefix(split).replace('_', ' ').strip()} {value:.4f}"
            for name, value in record.items()
            if name.startswith(split) and value is not None
        ]
        if measured:
            parts.append(f"{words} {', '.join(measured)}")
    end = f"{record[f'{progress.unit}_per_second']:,.0f} {progress.unit}/s"
    if progress.seconds_left:
        end += f", {_clock(progress.seconds_left)} left"
    return f"epoch {record['epoch']}/{progress.epochs}: {'; '.join([*parts, end])}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
