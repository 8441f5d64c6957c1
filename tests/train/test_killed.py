"""Readers and models of blanks that are killed while they learn end as those that were not, once resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fenchel.train.checkpoint import Checkpoint
from tests.train.cloze.small_blanks import filled
from tests.train.reading.small_readings import compared, read

ROOT = Path(__file__).parents[2]
KINDS = {"read": read, "compared": compared, "filled": filled}
KILLED = """
import os, signal, sys, torch
from pathlib import Path
from tests.train.small_trainings import Recorder
from tests.train.test_killed import KINDS
torch.set_num_threads(1)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
KINDS[sys.argv[2]](Path(sys.argv[1]), epochs=3, checkpoint_seconds=0, observer=Recorder(5, kill))
"""


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    whole = KINDS[kind](tmp_path / "whole", epochs=3)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "killed"), kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert 0 < Checkpoint.read(tmp_path / "killed").state.step <= 5
    again = KINDS[kind](tmp_path / "killed", epochs=3, resume=True)
    assert again.headline == whole.headline
    ours, theirs = (Checkpoint.read(tmp_path / name).tensors for name in ("killed", "whole"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
