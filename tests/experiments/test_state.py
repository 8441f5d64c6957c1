"""The files of an experiment that are read back: whatever is wrong with one is said, and no table is made from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fenchel.experiments import EXPERIMENTS, ExperimentReport, report_on, run_experiment
from fenchel.experiments.folder import PLAN_FORM, ExperimentFolder
from fenchel.experiments.report import REPORT_FORM
from fenchel.storage import read_document, write_document
from fenchel.train.result import RESULTS_FORM, TrainResult
from tests.damage import refuses, refuses_every_damage
from tests.experiments.small_experiments import StandIn, diverging

ROOT = Path(__file__).parents[2]
RUN = Path("fashion-mnist", "vit", "lr-0.0003", "seed-0")


@pytest.fixture
def folder(tmp_path: Path, few: None) -> Path:
    """A finished experiment, one of whose runs has diverged."""
    trainer = StandIn(before=diverging("ot-vit", 0))
    run_experiment("table2", tmp_path, data=["fashion-mnist"], seeds=2, trainer=trainer)
    return tmp_path


def test_any_damage_to_the_plan_is_refused(folder: Path) -> None:
    path = folder / "experiment.json"
    refuses_every_damage(path, lambda: ExperimentFolder(folder).plan())


def test_any_damage_to_a_run_is_refused(folder: Path) -> None:
    path = folder / RUN / "results.json"
    refuses_every_damage(path, lambda: TrainResult.read(folder / RUN))
    path.write_bytes(path.read_bytes().replace(b"0.8", b"0.9"))
    refuses(path, lambda: report_on("table2", folder))
    refuses(
        path, lambda: run_experiment("table2", folder, data=["fashion-mnist"], seeds=2, trainer=StandIn())
    )


def test_any_damage_to_the_note_of_a_diverged_run_is_refused(folder: Path) -> None:
    (path,) = folder.rglob("diverged.json")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"nan", b"man"))
    assert "Remove it, and the run is tried again." in refuses(path, lambda: report_on("table2", folder))
    path.write_bytes(content)
    plan = ExperimentFolder(folder).plan()
    assert plan is not None
    (run,) = [run for run in plan.runs() if ExperimentFolder(folder).divergence(run)]
    refuses_every_damage(path, lambda: ExperimentFolder(folder).divergence(run))


def test_any_damage_to_the_report_is_refused(folder: Path) -> None:
    path = folder / "results.json"
    refuses_every_damage(path, lambda: ExperimentReport.load(folder))
    path.write_bytes(b"{}")
    report_on("table2", folder)
    assert ExperimentReport.load(folder).finished


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("experiment", "table9"),
        ("budget", "huge"),
        ("setting", {"epochs": 0}),
        ("setting", {"depht": 3}),
        ("setting", []),
        ("data", []),
        ("data", ["a/b", "a:b"]),
        ("arms", ["vat"]),
        ("learning_rates", ["x"]),
        ("learning_rates", [-1.0]),
        ("seeds", 0),
        ("seeds", True),
        ("descriptions", [{"name": "a"}]),
    ],
)
def test_a_plan_that_is_none_is_refused_though_it_is_sealed(folder: Path, field: str, value: Any) -> None:
    plan = read_document(folder / "experiment.json", PLAN_FORM)
    write_document(folder / "experiment.json", PLAN_FORM, {**plan, field: value})
    refuses(folder / "experiment.json", lambda: ExperimentFolder(folder).plan())
    report = read_document(folder / "results.json", REPORT_FORM)
    write_document(folder / "results.json", REPORT_FORM, {**report, "plan": {**plan, field: value}})
    refuses(folder / "results.json", lambda: ExperimentReport.load(folder))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("options", {}),
        ("options", {"data": "fashion-mnist", "epochs": -1}),
        ("options", {"data": "fashion-mnist", "beauty": 1}),
        ("finished", "yes"),
        ("model", {"parameters": -1}),
        ("machine", {}),
        ("notes", "none"),
        ("epochs", [{}]),
        ("epochs", None),
        ("train_seconds", -1.0),
        ("sessions", {}),
    ],
)
def test_results_that_are_none_are_refused_though_they_are_sealed(
    folder: Path, field: str, value: Any
) -> None:
    path = folder / RUN / "results.json"
    write_document(path, RESULTS_FORM, {**read_document(path, RESULTS_FORM), field: value})
    refuses(path, lambda: TrainResult.read(folder / RUN))


def test_one_kind_of_results_is_not_taken_for_the_other(folder: Path) -> None:
    shutil.copy(folder / RUN / "results.json", folder / "results.json")
    assert "holds a results file of a training, not" in refuses(
        folder / "results.json", lambda: ExperimentReport.load(folder)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"test_accuracy": 1.5},
            r"runs[0].test_accuracy is 1.5; expected a finite number at least 0 and at most 1",
        ),
        ({"seed": -1}, "runs[0].seed is -1"),
        ({"arm": "vat"}, "runs[0].arm is 'vat'; expected one of vit"),
        ({"curves": {}}, "runs[0].curves.train_loss is missing"),
    ],
)
def test_published_results_without_a_digest_are_read_if_they_are_some(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    published = ROOT / "docs" / "results" / "ot-vit-ablation.json"
    report = ExperimentReport.load(published)
    assert len(report.records) == 15
    written = json.loads(published.read_text())
    written["runs"][0].update(change)
    (tmp_path / "results.json").write_text(json.dumps(written))
    assert message in refuses(tmp_path / "results.json", lambda: ExperimentReport.load(tmp_path))


def test_what_earlier_versions_did_not_measure_may_be_missing(tmp_path: Path) -> None:
    written = read_document(ROOT / "docs" / "results" / "reading-sick.json", REPORT_FORM)
    assert all("test_spearman" not in run["curves"] for run in written["runs"])
    written["runs"][0]["curves"]["test_spearman"] = [None, 0.75]
    write_document(tmp_path / "results.json", REPORT_FORM, written)
    first, second, *_ = ExperimentReport.load(tmp_path).records
    assert first.curves["test_spearman"] == (None, 0.75)
    assert "test_spearman" not in second.curves
    assert first.to_json(EXPERIMENTS["reading-sick"].of.task)["curves"]["test_spearman"] == [None, 0.75]
    written["runs"][0]["curves"]["test_kendall"] = [None, 0.5]
    write_document(tmp_path / "results.json", REPORT_FORM, written)
    assert "test_kendall" in refuses(tmp_path / "results.json", lambda: ExperimentReport.load(tmp_path))
