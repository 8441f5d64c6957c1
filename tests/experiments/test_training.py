"""Experiments with real training of tiny models: interrupted and resumed, and on several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fenchel.experiments import ExperimentReport, run_experiment
from fenchel.experiments.observer import SilentExperimentObserver
from fenchel.experiments.run import planned
from fenchel.experiments.training import options_of
from fenchel.train.observer import SilentObserver
from fenchel.train.progress import Progress
from tests.experiments.small_experiments import few_images

TINY: dict[str, Any] = {
    "train_images": 40,
    "test_images": 20,
    "epochs": 2,
    "batch_size": 8,
    "precision": "float32",
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 16,
    "dropout": 0.0,
}


@pytest.fixture
def few_without_figures(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of images, and no curves of single trainings either."""
    monkeypatch.setattr("fenchel.train.run.write_curves", lambda result, directory: None)


def tiny(folder: Path, **given: Any) -> ExperimentReport:
    return run_experiment(
        "ablation",
        folder,
        **{
            "data": ["fashion-mnist"],
            "arms": ["vit", "ot-vit"],
            "learning_rates": [3e-3],
            "seeds": 2,
            "options": TINY,
            **given,
        },
    )


def numbers(report: ExperimentReport) -> list[tuple[str, int, float, dict[str, Any]]]:
    """Everything but what a clock says."""
    return [(one.arm, one.seed, one.headline, dict(one.curves)) for one in report.records]


@pytest.mark.usefixtures("few_without_figures")
def test_all_arms_are_trained(tmp_path):
    report = tiny(tmp_path, arms=None, seeds=1, options={**TINY, "epochs": 1})
    assert report.finished
    first_losses = [record.curves["train_loss"][0] for record in report.records]
    assert len(set(first_losses)) == 5, "two arms are the same"
    assert all(record.parameters == report.records[0].parameters for record in report.records)
    assert all(record.machine["precision"] == "float32" for record in report.records)


@pytest.mark.usefixtures("few_without_figures")
def test_arms_learn_and_differ_between_seeds(tmp_path):
    report = tiny(tmp_path, options={**TINY, "epochs": 6}, arms=["ot-vit"])
    assert all(record.headline > 0.7 for record in report.records)
    assert report.records[0].curves != report.records[1].curves


class Stopping(SilentExperimentObserver):
    """Presses Ctrl-C after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left_over = steps

    def began(self, run, position):
        outer = self

        class Counting(SilentObserver):
            def advanced(self, progress: Progress) -> None:
                outer.left_over -= 1
                if outer.left_over == 0:
                    raise KeyboardInterrupt

        return Counting()


@pytest.mark.usefixtures("few_without_figures")
def test_interrupted_anywhere_and_repeated_it_comes_to_the_same(tmp_path):
    whole = tiny(tmp_path / "whole")
    for steps in (3, 14, 13):
        with pytest.raises(KeyboardInterrupt):
            tiny(tmp_path / "parts", observer=Stopping(steps))
    stopped = ExperimentReport.load(tmp_path / "parts")
    assert 0 < len(stopped.records) < 4
    assert numbers(tiny(tmp_path / "parts")) == numbers(whole)
    (run, *_) = whole.plan.runs()
    place = tmp_path / "parts" / run.place
    assert place.joinpath("checkpoint.safetensors").exists()


@pytest.mark.usefixtures("few_without_figures")
def test_an_experiment_is_that_of_the_training_alone(tmp_path):
    from fenchel.train import train

    report = tiny(tmp_path / "experiment", seeds=1)
    plan = planned(
        "ablation", ["fashion-mnist"], arms=["ot-vit"], learning_rates=[3e-3], seeds=1, options=TINY
    )
    (run,) = plan.runs()
    alone = train(options_of(run, plan), tmp_path / "alone", data=few_images())
    assert report.records[1].headline == alone.headline


SCRIPT = """
import sys
from pathlib import Path
import pytest
import torch.distributed
from fenchel.errors import InputError
from tests.experiments.small_experiments import read_few_images
from tests.experiments.test_training import tiny, TINY

read_few_images(pytest.MonkeyPatch())
torch.distributed.init_process_group("gloo")
report = tiny(Path(sys.argv[1]), seeds=1, device="cpu")
# One write a line: the lines of two processes must not mix.
sys.stdout.write(f"records: {len(report.records)}\\n")
try:
    tiny(Path(sys.argv[1]), seeds=1, device="cpu", options={**TINY, "epochs": 9})
except InputError as error:
    sys.stdout.write(f"refused: {error}\\n")
torch.distributed.destroy_process_group()
"""


def on_two_processes(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    (folder / "script.py").write_text(script)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    known = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *launch, str(folder / "script.py"), str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": known, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.usefixtures("few_without_figures")
def test_all_processes_of_torchrun_train_every_run_together(tmp_path):
    done = on_two_processes(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines[:2] == ["records: 0", "records: 2"]
    assert "epochs: 2 there, 9 asked for" in lines[2]
    assert lines[3] == "refused: the first process could not begin; its message says why."
    found = ExperimentReport.load(tmp_path / "out")
    assert found.finished
    assert [record.machine["processes"] for record in found.records] == [2, 2]
    assert "Trained on: cpu, 1 thread, 2 processes, float32." in found.caveats
    alone = tiny(tmp_path / "alone", seeds=1)
    for ours, theirs in zip(found.records, alone.records, strict=True):
        assert ours.curves["train_loss"] == pytest.approx(theirs.curves["train_loss"], rel=1e-3)
