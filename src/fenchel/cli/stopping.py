"""Ctrl-C that lets the step under way end, so that everything that was done is saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from fenchel.cli.failure import say
from fenchel.train.observer import TrainObserver
from fenchel.train.progress import Progress

__all__ = ["stopping_at_a_step"]


class _Stopping:
    """Another observer, which stops the training after a step once somebody has asked for it."""

    def __init__(self, observer: TrainObserver) -> None:
        self._observer = observer
        self.asked = False

    def started(self, description: Mapping[str, Any]) -> None:
        self._observer.started(description)

    def advanced(self, progress: Progress) -> None:
        self._observer.advanced(progress)
        if self.asked:
            raise KeyboardInterrupt

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress) -> None:
        self._observer.epoch_finished(record, progress)

    def finished(self) -> None:
        self._observer.finished()


@contextlib.contextmanager
def stopping_at_a_step(observer: TrainObserver) -> Iterator[TrainObserver]:
    """Within it, the first Ctrl-C ends the training after its step and the second one at once.

    Where several processes train, each would end at another step, so there Ctrl-C ends them at once.

    Args:
        observer: Shows the training.

    Yields:
        The observer to train with.
    """
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if not alone or threading.current_thread() is not threading.main_thread():
        yield observer
        return
    stopping = _Stopping(observer)
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        if stopping.asked:
            raise KeyboardInterrupt
        stopping.asked = True
        say("stopping after this step; press Ctrl-C again to stop at once")

    signal.signal(signal.SIGINT, ask)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
