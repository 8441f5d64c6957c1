"""A lock is held by one process at a time, and let go when its holder ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fenchel.errors import OutputError
from fenchel.runs.lock import held, tried

HOLDER = """
import sys, time
from pathlib import Path
from fenchel.runs.lock import tried
with tried(Path(sys.argv[1])) as free:
    print(free, flush=True)
    time.sleep(60)
"""


def test_one_at_a_time(tmp_path):
    path = tmp_path / "run.lock"
    with tried(path) as first:
        with tried(path) as second, tried(tmp_path / "other.lock") as other:
            assert (first, second, other) == (True, False, True)
        with tried(path) as third:
            assert not third
    with tried(path) as again:
        assert again


def test_an_error_inside_lets_go(tmp_path):
    path = tmp_path / "run.lock"
    with pytest.raises(RuntimeError, match="stop"), tried(path):
        raise RuntimeError("stop")
    with tried(path) as free:
        assert free


def test_a_killed_process_lets_go(tmp_path):
    path = tmp_path / "run.lock"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with tried(path) as free:
            assert not free
        os.kill(process.pid, signal.SIGKILL)
    with tried(path) as free:
        assert free


def test_held_waits(tmp_path):
    path, order = tmp_path / "run.lock", []

    def second() -> None:
        with held(path):
            order.append("second")

    with held(path):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(timeout=0.2)
        order.append("first")
    waiting.join(timeout=10)
    assert order == ["first", "second"]


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"), tried(tmp_path / "file" / "run.lock"):
        pass
