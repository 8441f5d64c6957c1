"""How far a run through texts is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fenchel.runs.observer import RunObserver

__all__ = ["Progress", "ProgressClock", "ReadingObserver"]


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
