"""Ctrl-C that is not lost in a place where Python ignores exceptions."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from fenchel.runs.observer import RunObserver

__all__ = ["insisting"]


@contextlib.contextmanager
def insisting(observer: RunObserver[Any]) -> Iterator[RunObserver[Any]]:
    """Within it, Ctrl-C interrupts as always, and once more at the next batch if that came to nothing.

    An exception that a signal raises while a destructor or a callback of the garbage collector runs is printed and
    forgotten, and the run would go on as if nobody had asked it to stop.

    Args:
        observer: Whom the run tells how it goes.

    Yields:
        The one to give to the run: it tells the first, and interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield observer
        return
    told = _Insisting(observer)
    before = signal.signal(signal.SIGINT, told.ask)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)


class _Insisting:
    """Tells another, and raises again what was asked for.

    Args:
        observer: The other.
    """

    def __init__(self, observer: RunObserver[Any]) -> None:
        self._observer, self._asked = observer, False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal."""
        self._asked = True
        raise KeyboardInterrupt

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """See ``RunObserver``."""
        self._observer.started(manifest)

    def advanced(self, progress: Any, /) -> None:
        """See ``RunObserver``; what was counted will be saved."""
        self._observer.advanced(progress)
        if self._asked:
            raise KeyboardInterrupt

    def finished(self) -> None:
        """See ``RunObserver``."""
        self._observer.finished()
