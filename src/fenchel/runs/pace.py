"""When a run that is under way is saved: at most once in so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SavingPace"]


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
