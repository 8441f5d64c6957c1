"""Experiments of other tasks than images: arms are compared by the headline that their task has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fenchel.errors import InputError
from fenchel.experiments import EXPERIMENTS, ExperimentReport, report_on, run_experiment
from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.definition import Experiment
from fenchel.experiments.finding import findings
from fenchel.experiments.page import filled
from fenchel.experiments.run import planned
from fenchel.experiments.table import markdown, markdown_table
from fenchel.experiments.training import options_of
from fenchel.train.text import TextClassification
from tests.pages import ROOT, page
from tests.train.line_task import Line
from tests.train.text.small_texts import sentences

LINES = Comparison(
    task=Line,
    arms=arms_by_name(
        Arm("noisy", "Noisy", {"noise": 2.0}, "points are seen in noise"),
        Arm("clear", "Clear", {"noise": 0.0}, "points are seen as they are"),
    ),
    baseline="noisy",
    budgets=budgets_by_name(
        Budget("smoke", {"epochs": 3}, "a second"), Budget("desk", {"epochs": 9}, "more")
    ),
    caveats=lambda plan, records: (f"{len(records)} lines.",),
    before="To know:",
)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment on lines that draws nothing."""
    experiment = Experiment(
        "lines", "Lines: with and without noise", LINES, ("line",), ("noisy", "clear"), (0.1,)
    )
    monkeypatch.setitem(EXPERIMENTS, "lines", experiment)
    monkeypatch.setattr("fenchel.experiments.report.write_curves", lambda results, path: None)
    monkeypatch.setattr("fenchel.train.run.write_curves", lambda result, directory: None)


def run_lines(folder: Path, **given: Any) -> ExperimentReport:
    return run_experiment("lines", folder, **{"options": {"batch_size": 4}, "device": "cpu", **given})


@pytest.mark.usefixtures("lines")
def test_any_task_is_compared_by_its_headline(tmp_path):
    report = run_lines(tmp_path)
    assert report.finished
    assert [record.headline for record in report.records] == [
        record.curves["test_error"][-1] for record in report.records
    ]
    assert report.title == "Lines: with and without noise, budget smoke"
    assert ExperimentReport.load(tmp_path).to_json() == report.to_json()
    assert report_on("lines", tmp_path) == report
    assert run_lines(tmp_path) == report
    written = json.loads((tmp_path / "results.json").read_text())
    assert "test_error" in written["runs"][0]
    assert "points_per_second" in written["runs"][0]
    assert written["cells"][0]["error"]["count"] == 3
    assert written["plan"]["descriptions"][0]["train_points"] == 22
    assert "accuracy" not in json.dumps(written)
    assert "image" not in json.dumps(written)


@pytest.mark.usefixtures("lines")
def test_less_of_an_error_is_a_gain(tmp_path):
    report = run_lines(tmp_path, seeds=5)
    (_, cell) = report.cells
    assert cell.difference is not None
    assert cell.difference.high is not None
    assert cell.difference.high < 0
    (sentence,) = report.findings
    assert sentence.startswith("line, learning rate 0.1: Clear minus Noisy is −")
    assert sentence.endswith("over 5 seeds: Clear gains.")
    (other,) = findings(report.cells, "Noisy", higher_is_better=True)
    assert other.endswith("Clear loses.")


@pytest.mark.usefixtures("lines")
def test_without_the_papers_numbers_there_is_no_column_for_them(tmp_path):
    text = markdown(run_lines(tmp_path).results)
    assert "| Arm | Test error ± 95 % | Minus Noisy ± 95 % | Seeds |\n|---|---:|---:|---:|" in text
    assert "aper" not in text
    assert "To know:\n\n" in text
    assert "* 6 lines." in text
    assert "an error can be, at least 0." in text
    assert "* Clear: points are seen as they are." in text


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arms": ["vit"]}, "arms is 'vit'; expected some of noisy, clear"),
        ({"budget": "paper"}, r"budget is 'paper'; expected one of: smoke \(a second\)"),
        ({"options": {"noise": 1.0}}, "'noise' is not shared by the runs of an experiment"),
        ({"options": {"patch_size": 4}}, "'patch_size' is no option of a training"),
    ],
    ids=str,
)
def test_what_another_task_has_is_refused(tmp_path, given, message):
    with pytest.raises(InputError, match=message):
        run_lines(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("lines")
def test_an_accuracy_is_no_error(tmp_path):
    run_lines(tmp_path, seeds=1)
    path = tmp_path / "results.json"
    path.write_text(path.read_text().replace("test_error", "test_accuracy"))
    with pytest.raises(InputError, match="is damaged or was changed"):
        ExperimentReport.load(tmp_path)


@pytest.fixture
def few_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of sentences under TREC's name."""
    monkeypatch.setattr(
        TextClassification,
        "read",
        staticmethod(lambda name: (sentences(name=name), sentences(20, seed=1, name=name))),
    )
    monkeypatch.setattr("fenchel.train.run.write_curves", lambda result, directory: None)


@pytest.mark.usefixtures("few_sentences")
def test_ways_to_pool_are_compared(tmp_path):
    small = {"train_sentences": 40, "batch_size": 8, "width": 8, "heads": 2, "precision": "float32"}
    report = run_experiment("pooling", tmp_path, options=small, seeds=1, device="cpu")
    assert report.finished
    assert [record.arm for record in report.records] == ["mean", "first-order", "second-order", "exact"]
    assert len({record.curves["train_loss"] for record in report.records}) == 4, "two arms are the same"
    assert all(record.curves["test_accuracy"][0] is None for record in report.records)
    assert "trec: trained on 40 sentences only." in report.caveats
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_arms_of_pooling_differ_in_nothing_but_how_they_pool():
    plan = planned("pooling", seeds=1)
    asked = [options_of(run, plan).resolved().to_json() for run in plan.runs()]
    assert [(one.pop("model"), one.pop("estimator")) for one in asked] == [
        ("mean-pooling", None),
        ("attention-pooling", "first_order"),
        ("attention-pooling", "second_order"),
        ("attention-pooling", "exact"),
    ]
    assert all(one == asked[0] for one in asked)


def test_the_page_holds_what_was_recorded():
    recorded = ExperimentReport.load(ROOT / "docs" / "results" / "trec-pooling.json")
    assert recorded.finished
    assert len(recorded.records) == 12
    text = page("docs/training.md")
    assert markdown_table(recorded.results) in text
    assert filled(text, {"trec-pooling": recorded}) == text
    assert (ROOT / "docs" / "images" / "trec-pooling.png").exists()
    assert not any(cell.difference and cell.difference.excludes_zero for cell in recorded.cells)
    assert "No interval excludes zero" in text
