"""Progress tells speed and time left from what was measured, and nothing where it cannot."""

from __future__ import annotations

import pytest

from fenchel.progress import ProgressClock, ReadingObserver, SilentObserver


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_speed_and_time_left_of_an_audit_from_the_start() -> None:
    clock = Clock()
    progress = ProgressClock(0, now=clock)
    clock.seconds += 4.0
    found = progress.progress(documents=3, tokens=200, fraction=0.25)
    assert (found.documents, found.tokens, found.seconds) == (3, 200, 4.0)
    assert found.tokens_per_second == pytest.approx(50.0)
    assert found.seconds_left == pytest.approx(12.0)
    clock.seconds += 4.0
    assert progress.progress(6, 400, 0.75).seconds_left == pytest.approx(8.0 / 3.0)
    assert progress.progress(6, 400, 1.0).seconds_left == pytest.approx(0.0)


def test_a_resumed_audit_takes_its_own_speed() -> None:
    clock = Clock()
    progress = ProgressClock(1000, now=clock)
    clock.seconds += 10.0
    first = progress.progress(50, 1100, 0.5)
    assert first.tokens_per_second == pytest.approx(10.0)
    assert first.seconds_left is None
    clock.seconds += 10.0
    assert progress.progress(60, 1200, 0.75).seconds_left == pytest.approx(10.0)


def test_what_cannot_be_told_is_not() -> None:
    clock = Clock()
    progress = ProgressClock(0, now=clock)
    assert progress.progress(1, 5, None).tokens_per_second == 0.0
    clock.seconds += 1.0
    assert progress.progress(1, 5, None).seconds_left is None


def test_the_silent_observer_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    observer: ReadingObserver = SilentObserver()
    observer.started({"model": "m"})
    observer.advanced(ProgressClock().progress(1, 2, 0.5))
    observer.finished()
    assert capsys.readouterr() == ("", "")
