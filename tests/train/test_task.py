"""The engine asks nothing about images: a line through points is trained, stopped, resumed, shared and read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fenchel.errors import InputError, ProblemError
from fenchel.storage import read_document, read_tensors, write_document, write_tensors
from fenchel.train import TASKS, LoopOptions, TrainResult, load_model, registered
from fenchel.train.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FORM, Checkpoint
from fenchel.train.registry import task_of
from fenchel.train.result import RESULTS_FORM
from tests.train.line_task import LINE, Line, LineOptions, fitted
from tests.train.small_trainings import Recorder, trained, weights
from tests.train.text.small_texts import classified

ROOT = Path(__file__).parents[2]


def lasting(result: TrainResult) -> list[dict[str, float | None]]:
    """What does not depend on the clock."""
    return [{name: value for name, value in epoch.items() if "second" not in name} for epoch in result.epochs]


def test_a_line_is_fitted_and_its_files_say_so(tmp_path):
    observer = Recorder()
    result = fitted(tmp_path, epochs=40, noise=0.0, observer=observer)
    assert result.finished
    assert result.headline is not None
    assert result.headline < 0.02
    assert result.best == min(epoch["test_error"] for epoch in result.epochs)
    assert result.test_accuracy is None
    assert TrainResult.read(tmp_path) == result
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["task"] == "line"
    assert written["test_error"] == written["epochs"][-1]["test_error"] == result.headline
    assert written["best_test_error"] == result.best
    assert written["points_per_second"] > 0
    assert not [name for name in written if "image" in name or "accuracy" in name]
    assert set(written["epochs"][0]) == {
        "epoch", "step", "learning_rate", "train_loss", "test_error", "test_bias", "seconds", "points_per_second",
    }  # fmt: skip
    assert observer.progress[-1].measures.keys() == {"loss"}
    assert (observer.progress[-1].unit, observer.progress[-1].steps) == ("points", 200)
    line = load_model(tmp_path)
    assert isinstance(line, nn.Linear)
    assert line(torch.ones(1, 1)).item() == pytest.approx(3.0, abs=0.05)


def test_the_metrics_are_those_of_the_task(tmp_path):
    result = fitted(tmp_path)
    assert repr(result) == (
        f"<TrainResult: {len(result.epochs)} of {result.options.epochs} epochs, test error {result.headline:.4f}>"
    )
    with torch.no_grad():
        data = Line.read("line")
        difference = load_model(tmp_path)(data.x) - data.y
    assert result.last("test_error") == pytest.approx(difference.square().mean().sqrt().item(), rel=1e-5)
    assert result.last("test_bias") == pytest.approx(difference.mean().item(), rel=1e-4)


@pytest.mark.parametrize("stop_at", [1, 7, 14])
def test_an_interrupted_fit_goes_on_bit_for_bit(tmp_path, stop_at):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "a", observer=Recorder(stop_at, interrupt))
    assert Checkpoint.read(tmp_path / "a").state.step == stop_at
    assert lasting(fitted(tmp_path / "a", resume=True)) == lasting(fitted(tmp_path / "b"))
    ours, theirs = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    "changes", [{"noise": 0.2}, {"seed": 1}, {"gradient_clip": 0.1}, {"batch_size": 2}], ids=str
)
def test_options_of_the_task_and_of_the_loop_change_the_numbers_and_are_compared(tmp_path, changes):
    plain = fitted(tmp_path)
    (name,) = changes
    with pytest.raises(InputError, match=rf"they differ in {name.replace('_', ' ')}: "):
        fitted(tmp_path, resume=True, **changes)
    assert lasting(fitted(tmp_path / "other", **changes)) != lasting(plain)


def test_options_are_checked_by_their_rules():
    with pytest.raises(
        InputError, match=r"^noise is -1; expected a finite number at least 0, such as 0\.1\.$"
    ):
        LineOptions(**{**LINE, "noise": -1})
    with pytest.raises(InputError, match=r"^batch size is 0; expected a whole number"):
        LineOptions(**{**LINE, "batch_size": 0})
    assert LineOptions.from_json(LineOptions(**LINE).to_json()) == LineOptions(**LINE)
    resolved = LineOptions(**LINE).resolved()
    assert (resolved.weight_decay, resolved.warmup_fraction, resolved.gradient_clip) == (0.01, 0.05, 0.0)


def test_a_task_does_not_go_on_with_anothers_training(tmp_path):
    trained(tmp_path, epochs=1)
    with pytest.raises(InputError, match=r"they differ in task: 'images' there, 'line' asked for; "):
        fitted(tmp_path, resume=True)
    assert TrainResult.read(tmp_path).task is TASKS["images"]


def test_a_name_is_given_once_and_options_belong_to_a_task():
    with pytest.raises(ProblemError, match="there is a task 'line' already"):

        @registered
        class Other(Line):  # pyright: ignore[reportUnusedClass]
            pass

    assert TASKS["line"] is Line
    assert registered(Line) is Line
    with pytest.raises(InputError, match=r"options is a LoopOptions; expected one of .*LineOptions"):
        task_of(LoopOptions(data="x"))


def test_files_of_a_task_that_is_not_known_are_refused(tmp_path):
    fitted(tmp_path)
    path, file = tmp_path / "results.json", tmp_path / CHECKPOINT_FILE
    write_document(path, RESULTS_FORM, {**read_document(path, RESULTS_FORM), "task": "sounds"})
    with pytest.raises(
        InputError, match=r"results\.json is of the task 'sounds', and those that are known here are"
    ):
        TrainResult.read(tmp_path)
    tensors, described = read_tensors(file, CHECKPOINT_FORM)
    write_tensors(file, CHECKPOINT_FORM, tensors, {**described, "task": "sounds"})
    with pytest.raises(InputError, match=r"checkpoint\.safetensors is of the task 'sounds'"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "change", [{"test_error": -1.0}, {"points_per_second": None}, {"test_bias": "none"}], ids=str
)
def test_results_have_to_hold_what_the_task_measures(tmp_path, change):
    fitted(tmp_path)
    path = tmp_path / "results.json"
    written = read_document(path, RESULTS_FORM)
    written["epochs"][1].update(change)
    write_document(path, RESULTS_FORM, written)
    with pytest.raises(InputError, match=rf"epochs\[1\]\.{next(iter(change))} is "):
        TrainResult.read(tmp_path)


def test_results_from_before_there_were_tasks_are_those_of_images(tmp_path):
    result = trained(tmp_path, epochs=1)
    path = tmp_path / "results.json"
    written = read_document(path, RESULTS_FORM)
    del written["task"]
    write_document(path, RESULTS_FORM, written)
    assert TrainResult.read(tmp_path) == result


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from typing import Any
from tests.train.small_trainings import Recorder
from tests.train.text.small_texts import classified
torch.set_num_threads(1)
observer = Recorder(8, lambda: os.kill(os.getpid(), signal.SIGKILL))
classified(Path(sys.argv[1]), estimator="exact", preference="position", checkpoint_seconds=0, observer=observer)
"""

SHARED = """
import sys
from pathlib import Path
from typing import Any
import torch
from tests.train.line_task import fitted
from tests.train.text.small_texts import classified
torch.set_num_threads(1)
folder = Path(sys.argv[1])
fitted(folder / "line")
classified(folder / "text", dropout=0.0, estimator="second_order")
"""


def started(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    known = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": known, "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_killed_classifier_of_sentences_ends_with_the_same_weights_bit_for_bit(tmp_path):
    asked: dict[str, Any] = {"estimator": "exact", "preference": "position"}
    done = started("-c", KILLED, str(tmp_path / "killed"))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert Checkpoint.read(tmp_path / "killed").state.step == 7
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        resumed = classified(tmp_path / "killed", resume=True, **asked)
        whole = classified(tmp_path / "whole", **asked)
    finally:
        torch.set_num_threads(before)
    ours, theirs = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert lasting(resumed) == lasting(whole)
    assert [session["step"] for session in resumed.sessions] == [0, 7]


def test_two_processes_train_any_task_as_one_does(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SHARED)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = started(*launcher, str(program), str(tmp_path))
    assert done.returncode == 0, done.stderr
    alone = (
        fitted(tmp_path / "one-line"),
        classified(tmp_path / "one-text", dropout=0.0, estimator="second_order"),
    )
    for one, name in zip(alone, ("line", "text"), strict=True):
        together = TrainResult.read(tmp_path / name)
        assert together.description["machine"]["processes"] == 2
        for ours, theirs in zip(lasting(together), lasting(one), strict=True):
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                assert ours[key] == (value and pytest.approx(value, rel=1e-3, abs=1e-5)), key
        ours, theirs = weights(tmp_path / name), weights(tmp_path / f"one-{name}")
        for key in theirs:
            # The keys' bias moves all scores of a head alike, so its gradient is nothing but rounding.
            if key.startswith("model/") and key != "model/key.bias":
                assert torch.allclose(ours[key], theirs[key], rtol=1e-3, atol=1e-4), key
