"""How far a long run is, whom it tells, and when it saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = [
    "Progress",
    "ProgressClock",
    "ReadingObserver",
    "RunObserver",
    "SavingPace",
    "SilentObserver",
]

P = TypeVar("P", contravariant=True)


class RunObserver(Protocol[P]):
    """Shows how far a run is, in the progress that its kind of run counts."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """The first batch or step is about to be taken; ``manifest`` says of what run."""

    def advanced(self, progress: P, /) -> None:
        """A batch or step has been counted."""

    def finished(self) -> None:
        """The run has ended or was interrupted: nothing more will be told."""


class SilentObserver:
    """Shows nothing."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """See ``RunObserver``."""

    def advanced(self, progress: Any, /) -> None:
        """See ``RunObserver``."""

    def finished(self) -> None:
        """See ``RunObserver``."""


class SavingPace:
    """Says when it is time to save.

    Args:
        seconds: Least time between two savings.
        now: Gives the time in seconds.

    Example:
        >>> times = iter([0.0, 5.0, 10.0, 10.0, 19.0])
        >>> pace = SavingPace(10.0, lambda: next(times))
        >>> pace.due, pace.due
        (False, True)
        >>> pace.saved()
        >>> pace.due
        False
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._last = now()

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the run began or was last saved."""
        return self._now() - self._last >= self._seconds

    def saved(self) -> None:
        """The run was saved just now."""
        self._last = self._now()


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        documents: Documents begun, those of earlier sessions included.
        tokens: Tokens counted, those of earlier sessions included.
        tokens_per_second: Speed in this session.
        fraction: Share of the source that has been read, from 0 to 1, or None where its length is not known.
        seconds: Time since this session began.
        seconds_left: Time to the end at this session's speed, or None where it cannot be told.
    """

    documents: int
    tokens: int
    tokens_per_second: float
    fraction: float | None
    seconds: float
    seconds_left: float | None


ReadingObserver = RunObserver[Progress]
"""Whoever shows how far a run through texts is."""


class ProgressClock:
    """Turns counts into speeds.

    Args:
        tokens: Tokens counted before this session.
        now: Gives the time in seconds.
    """

    def __init__(self, tokens: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begin = now()
        self._tokens_before = tokens
        self._first: tuple[float, float] | None = None if tokens else (0.0, 0.0)

    def progress(self, documents: int, tokens: int, fraction: float | None) -> Progress:
        """How far the run is now."""
        seconds = self._now() - self._begin
        return Progress(
            documents=documents,
            tokens=tokens,
            tokens_per_second=(tokens - self._tokens_before) / seconds if seconds > 0 else 0.0,
            fraction=fraction,
            seconds=seconds,
            seconds_left=self._seconds_left(seconds, fraction),
        )

    def _seconds_left(self, seconds: float, fraction: float | None) -> float | None:
        if fraction is None:
            return None
        # A resumed session begins somewhere inside the source: its first batch says where.
        if self._first is None:
            self._first = (seconds, fraction)
        first_seconds, first_fraction = self._first
        read = fraction - first_fraction
        return (seconds - first_seconds) * (1.0 - fraction) / read if read > 0 else None
