"""Going on: a killed training ends with the weights of an unbroken one, and of no other training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fenchel.errors import FenchelError, InputError
from fenchel.train import TrainResult
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from tests.damage import refuses, refuses_every_damage
from tests.train.small_trainings import Recorder, trained, weights

ROOT = Path(__file__).parents[2]

KILLED = """
import os, signal, sys, torch
from pathlib import Path
from tests.train.small_trainings import Recorder, trained
torch.set_num_threads(1)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
trained(Path(sys.argv[1]), model="ot-vit", recipe="strong", checkpoint_seconds=0, observer=Recorder(8, kill))
"""


def interrupt() -> None:
    raise KeyboardInterrupt


LASTING = ("epoch", "step", "learning_rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy")


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def lasting(result: TrainResult) -> list[list[float]]:
    """What does not depend on the clock."""
    return [[epoch[name] for name in LASTING] for epoch in result.epochs]


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_killed_training_ends_with_the_same_weights_bit_for_bit(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(killed)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Step 8 was taken and not saved: it has to be taken again.
    assert Checkpoint.read(killed).state.step == 7
    assert not TrainResult.read(killed).finished
    resumed = trained(killed, model="ot-vit", recipe="strong", resume=True)
    unbroken = trained(whole, model="ot-vit", recipe="strong")
    ours, theirs = weights(killed), weights(whole)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert lasting(resumed) == lasting(unbroken)
    assert [session["step"] for session in resumed.sessions] == [0, 7]


@pytest.mark.parametrize("stop_at", [1, 6, 9])
def test_an_interrupted_training_is_saved_where_it_is(tmp_path, stop_at):
    def interrupt() -> None:
        raise KeyboardInterrupt

    observer = Recorder(stop_at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "a", observer=observer)
    assert observer.told[-1] == "finished"
    assert Checkpoint.read(tmp_path / "a").state.step == stop_at
    resumed = trained(tmp_path / "a", resume=True)
    unbroken = trained(tmp_path / "b")
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert lasting(resumed) == lasting(unbroken)


@pytest.mark.parametrize("asked_at", [1, 5, 7])
def test_a_training_that_is_asked_to_stop_ends_after_its_step(tmp_path, asked_at):
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) >= asked_at

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "a", stop=stop, checkpoint_seconds=1e9)
    state = Checkpoint.read(tmp_path / "a").state
    assert (state.step, len(state.epochs)) == (
        asked_at,
        asked_at // 5,
    )  # an epoch that has ended is tested too
    assert lasting(trained(tmp_path / "a", resume=True)) == lasting(trained(tmp_path / "b"))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_a_training_that_is_asked_to_stop_at_its_last_step_is_finished(tmp_path):
    observer = Recorder()
    assert trained(tmp_path, observer=observer, stop=lambda: observer.told.count("advanced") == 8).finished


def test_a_wrong_resume_would_be_noticed(tmp_path):
    trained(tmp_path / "a", seed=0)
    trained(tmp_path / "b", seed=1)
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_a_finished_training_is_kept(tmp_path):
    first = trained(tmp_path)
    before = (tmp_path / CHECKPOINT_FILE).read_bytes(), (tmp_path / "results.json").read_bytes()
    observer = Recorder()
    assert trained(tmp_path, resume=True, observer=observer) == first
    assert (tmp_path / CHECKPOINT_FILE).read_bytes(), (tmp_path / "results.json").read_bytes() == before
    assert observer.told == []


def test_files_that_a_kill_at_the_very_end_prevented_are_written(tmp_path):
    first = trained(tmp_path)
    (tmp_path / "results.json").unlink()
    (tmp_path / "curves.png").unlink()
    assert trained(tmp_path, resume=True).epochs == first.epochs
    assert TrainResult.read(tmp_path).finished
    assert (tmp_path / "curves.png").exists()


def test_a_training_is_not_replaced_unasked(tmp_path):
    trained(tmp_path)
    with pytest.raises(
        InputError,
        match=r"a training of vit, finished after 10 steps and 2 whole epochs\. .*--resume.*--overwrite",
    ):
        trained(tmp_path)
    with pytest.raises(InputError, match="--resume and --overwrite contradict each other"):
        trained(tmp_path, resume=True, overwrite=True)
    assert trained(tmp_path, overwrite=True, seed=1).options.seed == 1


def test_finished_results_without_a_checkpoint_are_not_replaced(tmp_path):
    trained(tmp_path)
    (tmp_path / CHECKPOINT_FILE).unlink()
    with pytest.raises(InputError, match=r"holds results without the state that they came from \(checkpoint"):
        trained(tmp_path, resume=True)
    assert trained(tmp_path, overwrite=True).finished


def killed_after_the_first_epoch(directory: Path) -> None:
    """Leaves what a kill leaves that comes before the first checkpoint is due."""

    def kill() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        trained(directory, observer=Recorder(7, kill), checkpoint_seconds=1e9)
    assert not TrainResult.read(directory).finished


def test_a_kill_before_the_first_checkpoint_is_due_can_be_resumed(tmp_path):
    killed_after_the_first_epoch(tmp_path / "a")
    assert Checkpoint.read(tmp_path / "a").state.step == 0
    resumed = trained(tmp_path / "a", resume=True)
    assert lasting(resumed) == lasting(trained(tmp_path / "b"))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_unfinished_results_without_a_checkpoint_are_not_replaced(tmp_path):
    killed_after_the_first_epoch(tmp_path)
    (tmp_path / CHECKPOINT_FILE).unlink()
    with pytest.raises(InputError, match="holds results without the state that they came from"):
        trained(tmp_path, resume=True)
    assert not TrainResult.read(tmp_path).finished


def test_overwriting_leaves_nothing_of_the_old_training_to_resume(tmp_path):
    def interrupt() -> None:
        raise RuntimeError

    trained(tmp_path)
    with pytest.raises(RuntimeError):
        trained(tmp_path, overwrite=True, observer=Recorder(2, interrupt))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]
    assert Checkpoint.read(tmp_path).state.step == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"patch_size": 3},
        {"heads": 3},
        {"batch_size": 41},
        {"learning_rate": -1.0},
        {"model": "bogus"},
        {"gamma": 1.0},
        {"device": "meta"},
        {"checkpoint_seconds": -1.0},
        {"size": 4},
    ],
    ids=str,
)
def test_overwriting_with_an_option_that_cannot_be_used_deletes_nothing(tmp_path, wrong):
    trained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FenchelError):
        trained(tmp_path, overwrite=True, **wrong)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_a_folder_is_of_one_training_at_a_time(tmp_path, how):
    refused = []

    def second() -> None:
        with pytest.raises(InputError, match="is in use: another process is writing its results there"):
            trained(tmp_path, seed=1, **how)
        refused.append(how)

    assert trained(tmp_path, observer=Recorder(1, second)).options.seed == 0
    assert len(refused) == 1


def test_resuming_where_nothing_is_begins(tmp_path):
    assert trained(tmp_path / "new", resume=True).finished


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"differ in seed: 0 there, 1 asked for\. Give the same options"),
        (
            {"epochs": 3, "learning_rate": 1e-3},
            r"epochs: 2 there, 3 asked for; .*learning rate: 0\.003 there",
        ),
        ({"width": 32}, r"width: 16 there, 32 asked for"),
        ({"recipe": "strong"}, r"label smoothing: 0\.0 there, 0\.1 asked for"),
        ({"precision": "bfloat16"}, r"precision: 'float32' there, 'bfloat16' asked for"),
        ({"size": 60}, r"training images sha256: '[0-9a-f]{64}' there"),
    ],
    ids=str,
)
def test_another_training_is_refused_with_the_differences(tmp_path, changes, message):
    trained(tmp_path)
    before = (tmp_path / CHECKPOINT_FILE).read_bytes()
    with pytest.raises(InputError, match=message):
        trained(tmp_path, resume=True, **changes)
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == before


def test_a_damaged_checkpoint_is_refused_and_left(tmp_path):
    trained(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(
        InputError, match=r"is damaged or was changed .*train anew with fenchel train --overwrite"
    ):
        trained(tmp_path, resume=True)
    assert path.read_bytes() == bytes(content)
    assert trained(tmp_path, overwrite=True).finished


@pytest.mark.parametrize("step", [1, 4, 11, 10**9])
def test_a_step_outside_its_epoch_is_refused(tmp_path, step):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, observer=Recorder(7, interrupt))
    checkpoint = Checkpoint.read(tmp_path)
    (epoch,) = checkpoint.state.epochs
    epoch["step"] = min(step, 5)
    checkpoint.state.step = step
    checkpoint.write(tmp_path)
    with pytest.raises(
        InputError, match=rf"is at step {step} after 1 epochs of 5 steps; expected a step from 5 to 10"
    ):
        trained(tmp_path, resume=True)


def test_results_that_were_changed_are_refused_and_made_again_once_removed(tmp_path):
    trained(tmp_path)
    path = tmp_path / "results.json"
    content = path.read_bytes()
    refuses_every_damage(path, lambda: TrainResult.read(tmp_path))
    path.write_bytes(content.replace(b'"finished": true', b'"finished": null'))
    assert "or remove it: --resume then goes on" in refuses(path, lambda: trained(tmp_path, resume=True))
    path.unlink()
    trained(tmp_path, resume=True)
    assert path.read_bytes() == content


def test_nothing_depends_on_a_clock_or_a_process_number(tmp_path):
    assert os.environ.get("RANK") is None
    ours, theirs = (
        trained(tmp_path / "a", checkpoint_seconds=0),
        trained(tmp_path / "b", checkpoint_seconds=1e9),
    )
    assert lasting(ours) == lasting(theirs)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
