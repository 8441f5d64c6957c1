"""Ctrl-C interrupts at once, and where Python ignores what a signal raises, at the next batch."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from fenchel.auditing.audit_report import AUDIT
from fenchel.cli.failure import Interrupted, interruptible
from fenchel.io.runs import SilentObserver


class Recording(SilentObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def advanced(self, progress: object, /) -> None:
        self.told.append(progress)


class Lost:
    """Is interrupted while it is destroyed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_interrupts_at_once(tmp_path):
    with (
        pytest.raises(Interrupted, match="before anything was saved"),
        interruptible(SilentObserver(), AUDIT, tmp_path),
    ):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_was_lost_comes_at_the_next_batch(tmp_path):
    recording = Recording()
    with interruptible(recording, AUDIT, tmp_path) as observer:
        observer.advanced(1)
        lost = Lost()
        del lost
        with pytest.raises(KeyboardInterrupt):
            observer.advanced(2)
    assert recording.told == [1, 2]


def test_what_was_there_before_is_there_again(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with interruptible(SilentObserver(), AUDIT, tmp_path):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_are_left_alone(tmp_path):
    given, seen = SilentObserver(), []

    def run() -> None:
        with interruptible(given, AUDIT, tmp_path) as observer:
            seen.append(observer)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [given]
