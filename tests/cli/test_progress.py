"""Progress is drawn where somebody sees it, and nowhere else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fenchel.cli.terminal import TerminalObserver, observer_of_standard_error, state
from fenchel.io.runs import Progress, SilentObserver


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress(1, 20, 10.4, None, 2.0, None), "1 document, 20 tokens, 10 tokens/s"),
        (
            Progress(1_200, 3_000_000, 950.6, 0.5, 60, 59.6),
            "1,200 documents, 3,000,000 tokens, 951 tokens/s, 1:00 left",
        ),
        (Progress(2, 5, 0.0, 0.1, 1, 3_725), "2 documents, 5 tokens, 0 tokens/s, 1:02:05 left"),
    ],
)
def test_state_in_words(progress, expected):
    assert state(progress) == expected


def test_a_file_gets_no_progress():
    assert isinstance(observer_of_standard_error(), SilentObserver)


def test_a_terminal_gets_progress(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert isinstance(observer_of_standard_error(), TerminalObserver)


def test_what_the_terminal_shows():
    screen = io.StringIO()
    observer = TerminalObserver(Console(file=screen, force_terminal=True, width=120))
    observer.started({"model": "demo"})
    observer.advanced(Progress(3, 1_500, 750.0, 0.25, 2.0, 6.0))
    observer.finished()
    assert "auditing demo" in screen.getvalue()
    assert "3 documents, 1,500 tokens, 750 tokens/s, 0:06 left" in screen.getvalue()
