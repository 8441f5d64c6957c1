"""A lock is held by one process at a time, and let go when its holder ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fenchel.errors import InputError, OutputError
from fenchel.io.folder import LOCK_FILE, claimed, tried

HOLDER = """
import sys, time
from pathlib import Path
from fenchel.io.folder import tried
with tried(Path(sys.argv[1]), extra="report") as free:
    print(free, flush=True)
    time.sleep(60)
"""


def test_one_at_a_time(tmp_path):
    path = tmp_path / "run.lock"
    with tried(path, extra="report") as first:
        with tried(path, extra="report") as second, tried(tmp_path / "other.lock", extra="report") as other:
            assert (first, second, other) == (True, False, True)
        with tried(path, extra="report") as third:
            assert not third
    with tried(path, extra="report") as again:
        assert again


def test_an_error_inside_lets_go(tmp_path):
    path = tmp_path / "run.lock"
    with pytest.raises(RuntimeError, match="stop"), tried(path, extra="report"):
        raise RuntimeError("stop")
    with tried(path, extra="report") as free:
        assert free


def test_a_killed_process_lets_go(tmp_path):
    path = tmp_path / "run.lock"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with tried(path, extra="report") as free:
            assert not free
        os.kill(process.pid, signal.SIGKILL)
    with tried(path, extra="report") as free:
        assert free


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="cannot write"),
        tried(tmp_path / "file" / "run.lock", extra="report"),
    ):
        pass


def test_a_claimed_folder_is_refused_to_others_and_left_without_a_trace(tmp_path):
    folder = tmp_path / "new" / "run"
    with claimed(folder, extra="report"):
        assert (folder / LOCK_FILE).exists()
        with pytest.raises(InputError, match="is in use: another process"), claimed(folder, extra="report"):
            pytest.fail("it was claimed twice")
        with claimed(tmp_path, extra="report"):
            pass
        assert (folder / LOCK_FILE).exists()
    assert list(folder.iterdir()) == []
    with claimed(folder, extra="report"), claimed(None, extra="report"):
        pass


def test_a_claim_that_a_killed_process_left_is_taken_over(tmp_path):
    (tmp_path / LOCK_FILE).touch()
    with claimed(tmp_path, extra="report"):
        pass
    assert list(tmp_path.iterdir()) == []
