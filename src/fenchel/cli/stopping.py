"""Ctrl-C and SIGTERM that let the step under way end, so that everything that was done is saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from fenchel.cli.failure import say

__all__ = ["stopping_at_a_step"]


@contextlib.contextmanager
def stopping_at_a_step() -> Iterator[Callable[[], bool]]:
    """Within it, the first Ctrl-C or SIGTERM asks the training to end after its step; a second Ctrl-C ends it at once.

    A second SIGTERM changes nothing: a system that preempts a training may send it to a process and its parent, and
    torchrun passes it on as well.

    Yields:
        Whether the training is to end, for ``fenchel.train.train``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked and os.environ.get("RANK", "0") == "0":
            say("stopping after this step; press Ctrl-C again to stop at once")
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
