"""The progress of an audit or a swap on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from fenchel.auditing.counted import READS
from fenchel.runs.observer import SilentObserver
from fenchel.runs.progress import Progress, ReadingObserver

__all__ = ["TerminalObserver", "observer_of_standard_error"]


def observer_of_standard_error(doing: str = "auditing") -> ReadingObserver:
    """Shows progress on standard error if somebody can see it there; a file or a pipe gets none.

    Args:
        doing: What is going on, before the model's name.
    """
    return TerminalObserver(Console(stderr=True), doing) if sys.stderr.isatty() else SilentObserver()


class TerminalObserver:
    """A bar with documents, tokens, tokens a second and the time left.

    Args:
        console: Where to draw it.
        doing: What is going on, before the model's name.
    """

    def __init__(self, console: Console, doing: str = "auditing") -> None:
        self._doing, self._reads = doing, "text"
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), console=console
        )
        self._task = self._bar.add_task(doing, total=None, state="")

    def started(self, manifest: Mapping[str, Any]) -> None:
        """Begins to draw."""
        self._reads = str(manifest.get("reads") or "text")
        self._bar.update(self._task, description=f"{self._doing} {manifest.get('model')}")
        self._bar.start()

    def advanced(self, progress: Progress) -> None:
        """Draws how far the audit is."""
        self._bar.update(
            self._task,
            total=None if progress.fraction is None else 1.0,
            completed=progress.fraction or 0.0,
            state=state(progress, self._reads),
        )

    def finished(self) -> None:
        """Leaves the last state on the screen."""
        self._bar.stop()


def state(progress: Progress, reads: str = "text") -> str:
    """How far an audit is, in words.

    Example:
        >>> state(Progress(3, 12_500, 950.4, 0.25, 13.2, 39.5))
        '3 documents, 12,500 tokens, 950 tokens/s, 0:40 left'
        >>> state(Progress(3, 3, 0.5, 0.25, 6.0, 18.0), "images")
        '3 images, 0.5 images/s, 0:18 left'
    """
    one, several = READS[reads]
    parts = [f"{progress.documents:,} {one if progress.documents == 1 else several}"]
    if reads == "images":
        parts.append(f"{progress.tokens_per_second:.3g} images/s")
    else:
        parts += [f"{progress.tokens:,} tokens", f"{progress.tokens_per_second:,.0f} tokens/s"]
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")
    return ", ".join(parts)
