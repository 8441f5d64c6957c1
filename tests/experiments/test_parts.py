"""Experiments in parts: one after the other, several under a name, and runs that are recorded apart from weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from torch import nn

from fenchel.arguments import Text
from fenchel.errors import InputError
from fenchel.experiments import (
    COLLECTIONS,
    EXPERIMENTS,
    ExperimentReport,
    report_on_collection,
    run_collection,
    run_experiment,
)
from fenchel.experiments.after import After
from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.collection import Collection
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.definition import Experiment
from fenchel.experiments.run import planned
from fenchel.experiments.table import markdown_table
from fenchel.experiments.training import needed_run, options_of
from fenchel.runs.lock import held
from fenchel.train import load_model, registered
from tests.experiments.test_tasks import LINES as NOISY_LINES
from tests.train.line_task import Line, LineOptions


@dataclass(frozen=True, kw_only=True)
class SequelOptions(LineOptions):
    """Those of a line, and the line that it goes on from."""

    RULES: ClassVar = MappingProxyType({**LineOptions.RULES, "begun": Text("the folder of a line")})

    begun: str = "none"


@registered
class Sequel(Line):
    """A line that begins where another has ended."""

    name = "sequel"
    options_type = SequelOptions

    def model(self) -> nn.Module:
        options: Any = self.options
        model = nn.Linear(1, 1)
        if not model.weight.is_meta:
            model.load_state_dict(load_model(options.begun).state_dict())
        return model


LINES = replace(NOISY_LINES, setting={"batch_size": 4})
SEQUELS = Comparison(
    task=Sequel,
    arms=arms_by_name(
        Arm("after-noisy", "After noise", {"noise": 0.0}, "goes on from a line in noise", after="noisy"),
        Arm("after-clear", "After none", {"noise": 0.1}, "goes on from a clear line", after="clear"),
    ),
    baseline="after-noisy",
    budgets=budgets_by_name(
        Budget("smoke", {"epochs": 2}, "a second"), Budget("desk", {"epochs": 9}, "more")
    ),
    caveats=lambda plan, records: (f"{len(records)} sequels.",),
    before="To know:",
    setting={"batch_size": 11},
    columns=(Column("test_bias", "Bias", 3), Column("train_loss", "Loss in training")),
    costs=True,
    after=After("lines", "begun"),
)


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments on lines, the second after the first, and both under one name; nothing is drawn."""
    for name, of in (("lines", LINES), ("sequels", SEQUELS)):
        monkeypatch.setitem(
            EXPERIMENTS, name, Experiment(name, f"All {name}", of, ("line",), tuple(of.arms), (0.1,))
        )
    monkeypatch.setitem(COLLECTIONS, "both", Collection("both", "Both of them", ("lines", "sequels")))
    monkeypatch.setattr("fenchel.experiments.report.write_curves", lambda results, path: None)
    monkeypatch.setattr("fenchel.train.run.write_curves", lambda result, directory: None)


def sequels(folder: Path, **given: Any) -> ExperimentReport:
    return run_experiment("sequels", folder / "sequels", **{"seeds": 1, "device": "cpu", **given})


def test_what_comes_first_is_trained_first(tmp_path):
    report = sequels(tmp_path, seeds=2)
    assert report.finished
    assert {(record.arm, record.seed) for record in report.records} == {
        (arm, seed) for arm in SEQUELS.arms for seed in (0, 1)
    }
    lines = ExperimentReport.load(tmp_path / "lines")
    assert {(record.arm, record.seed) for record in lines.records} == {
        (arm, seed) for arm in LINES.arms for seed in (0, 1)
    }
    assert lines.plan.budget == "smoke"
    place = tmp_path / "sequels" / "line" / "after-clear" / "lr-0.1" / "seed-1"
    began = json.loads((place / "results.json").read_text())["options"]["begun"]
    assert began == str(tmp_path / "lines" / "line" / "clear" / "lr-0.1" / "seed-1")
    assert began != json.loads((place.with_name("seed-0") / "results.json").read_text())["options"]["begun"]
    assert sequels(tmp_path, seeds=2) == report


def test_another_folder_of_both_is_the_same_experiment(tmp_path):
    report = sequels(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert sequels(tmp_path / "b") == report
    run = next(iter(planned("sequels", arms=["after-clear"]).runs()))
    needed = needed_run(run, SEQUELS)
    assert needed is not None
    assert str(needed) == "line, clear, learning rate 0.1, seed 0"
    assert options_of(run, planned("sequels")).to_json()["begun"] == "lines/line/clear/lr-0.1/seed-0"


def test_weights_that_are_not_there_are_trained_again(tmp_path):
    sequels(tmp_path, arms=["after-noisy"])
    weights = tmp_path / "lines" / "line" / "noisy" / "lr-0.1" / "seed-0" / "checkpoint.safetensors"
    weights.unlink()
    sequels(tmp_path, arms=["after-noisy"])
    assert not weights.exists()  # nothing asked for them
    shutil.rmtree(tmp_path / "sequels" / "line")
    sequels(tmp_path, arms=["after-noisy"])
    assert weights.exists()


def test_a_run_waits_for_what_another_process_trains(tmp_path):
    lock = tmp_path / "lines" / "line" / "noisy" / "lr-0.1" / "seed-0.lock"
    lock.parent.mkdir(parents=True)
    with held(lock):
        report = sequels(tmp_path)
    assert [record.arm for record in report.records] == ["after-clear"]
    assert len(sequels(tmp_path).records) == 2


def test_more_than_the_headline_is_shown(tmp_path):
    report = sequels(tmp_path, seeds=2)
    _, _, head, _, first, _ = markdown_table(report.results).splitlines()
    assert head.endswith("| Seeds | Bias | Loss in training | Parameters | Minutes a run |")
    cells = [part.strip() for part in first.strip("|").split("|")]
    values = [
        record.curves["test_bias"][-1] or 0.0 for record in report.records if record.arm == "after-noisy"
    ]
    assert float(cells[-4].split(" ± ")[0].replace("−", "-")) == pytest.approx(sum(values) / 2, abs=6e-4)
    assert cells[-2:] == ["2", "0.0"]
    written = json.loads((tmp_path / "sequels" / "results.json").read_text())
    assert written["cells"][0]["beside"]["Parameters"] == "2"
    again = ExperimentReport.load(tmp_path / "sequels")
    assert again.to_json() == report.to_json()
    assert again.cells == report.cells


def test_an_arm_can_have_a_control_of_its_own(tmp_path, monkeypatch):
    own = {
        "noisy": LINES.arms["noisy"],
        "clear": LINES.arms["clear"],
        "less": Arm("less", "Less", {"noise": 1.0}, "in less noise", against="clear"),
        "apart": Arm("apart", "Apart", {"noise": 0.5}, "compared with nothing", against="apart"),
    }
    of = replace(LINES, arms=own)
    monkeypatch.setitem(EXPERIMENTS, "lines", Experiment("lines", "Lines", of, ("line",), tuple(own), (0.1,)))
    report = run_experiment("lines", tmp_path, device="cpu")
    cells = {cell.arm: cell for cell in report.cells}
    values = {arm: [one.headline for one in report.records if one.arm == arm] for arm in own}
    difference = cells["less"].difference
    assert difference is not None
    assert difference.mean == pytest.approx((sum(values["less"]) - sum(values["clear"])) / 3)
    assert [cells[name].control for name in own] == [None, None, "Clear", None]
    assert cells["apart"].difference is None
    assert "| Minus control ± 95 % |" in markdown_table(report.results)
    page = (tmp_path / "table.md").read_text()
    assert "* Less: in less noise; its control is Clear." in page
    assert "* Apart: compared with nothing." in page
    assert "* Clear: points are seen as they are; its control is Noisy." in page
    assert any("Less minus Clear is" in one for one in report.findings)
    assert ExperimentReport.load(tmp_path).to_json() == report.to_json()


def test_a_setting_of_the_experiment_holds_for_every_run():
    plan = planned("sequels")
    assert plan.setting["batch_size"] == 11
    assert planned("sequels", options={"batch_size": 2}).setting["batch_size"] == 2
    with pytest.raises(InputError, match="'begun' is not shared by the runs"):
        planned("sequels", options={"begun": "x"})


def test_recorded_runs_are_not_trained_again(tmp_path, monkeypatch):
    records = tmp_path / "records"
    first = run_experiment("lines", tmp_path / "a", seeds=2, device="cpu", records=records)
    kept = sorted(path.relative_to(records) for path in records.rglob("*.json"))
    assert [str(path) for path in kept] == [
        f"line/{arm}/lr-0.1/seed-{seed}.json" for arm in ("clear", "noisy") for seed in (0, 1)
    ]
    assert not list(records.rglob("*.safetensors"))

    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("a recorded run was trained")

    with monkeypatch.context() as patch:
        patch.setattr("fenchel.experiments.run.train", refuse)
        again = run_experiment("lines", tmp_path / "b", seeds=2, device="cpu", records=records)
    assert again.records == first.records
    more = run_experiment("lines", tmp_path / "b", seeds=3, device="cpu", records=records)
    assert len(more.records) == 6
    assert len(list(records.rglob("*.json"))) == 6
    (records / kept[0]).unlink()
    run_experiment("lines", tmp_path / "b", seeds=3, device="cpu", records=records)
    assert (records / kept[0]).exists()


def test_shares_meet_in_the_records(tmp_path):
    from fenchel.data.shard import Shard

    for index in (0, 1):
        run_experiment(
            "lines", tmp_path / str(index), device="cpu", records=tmp_path / "records", shard=Shard(index, 2)
        )
    report = run_experiment("lines", tmp_path / "whole", device="cpu", records=tmp_path / "records")
    assert report == run_experiment("lines", tmp_path / "1", device="cpu", records=tmp_path / "records")
    assert report.finished


def test_records_that_do_not_do_are_named(tmp_path):
    records = tmp_path / "records"
    run_experiment("lines", tmp_path / "a", seeds=1, device="cpu", records=records)
    record = records / "line" / "clear" / "lr-0.1" / "seed-0.json"
    with pytest.raises(InputError, match=r"seed-0\.json cannot be taken over: .*they differ in epochs"):
        run_experiment("lines", tmp_path / "b", seeds=1, budget="desk", device="cpu", records=records)
    assert not list((tmp_path / "b").rglob("results.json"))
    record.write_text(record.read_text().replace('"epoch": 1', '"epoch": 2', 1))
    with pytest.raises(InputError, match=r"clear/lr-0\.1/seed-0\.json cannot be taken over: "):
        run_experiment("lines", tmp_path / "c", seeds=1, device="cpu", records=records)
    assert not (tmp_path / "c" / "line" / "clear" / "lr-0.1" / "seed-0" / "results.json").exists()


def test_several_experiments_under_one_name(tmp_path):
    reports = run_collection("both", tmp_path, seeds=1, device="cpu", records=tmp_path / "records")
    assert [report.plan.experiment for report in reports] == ["lines", "sequels"]
    assert all(report.finished for report in reports)
    table = (tmp_path / "table.md").read_text()
    assert table.startswith("# Both of them\n")
    assert table.count("\n## All ") == 2
    assert (tmp_path / "sequels" / "table.md").exists()
    assert {path.name for path in (tmp_path / "records").iterdir()} == {"lines", "sequels"}
    again = report_on_collection("both", tmp_path)
    assert [report.records for report in again] == [report.records for report in reports]
    assert (tmp_path / "table.md").read_text() == table


def test_what_was_asked_for_chooses_within_a_collection(tmp_path):
    (report,) = run_collection("both", tmp_path, seeds=1, device="cpu", arms=["clear"])
    assert report.plan.arms == ("clear",)
    with pytest.raises(InputError, match=r"no experiment of 'both' has what was asked for: .*loud"):
        run_collection("both", tmp_path, arms=["loud"])
    with pytest.raises(InputError, match="collection is 'lines'; expected one of "):
        run_collection("lines", tmp_path)
    with pytest.raises(InputError, match="holds none of lines, sequels"):
        report_on_collection("both", tmp_path / "empty")


NEW = ("translation", "reading", "pretraining", "captions")


@pytest.mark.parametrize("name", NEW)
def test_every_arm_of_the_new_experiments_is_a_training_of_its_own(name):
    for part in COLLECTIONS[name].parts if name in COLLECTIONS else (name,):
        experiment = EXPERIMENTS[part]
        assert tuple(experiment.of.budgets) == ("smoke", "desk")
        for budget in experiment.of.budgets:
            plan = planned(part, arms=list(experiment.of.arms), budget=budget, seeds=1)
            options = [options_of(run, plan).resolved().to_json() for run in plan.runs()]
            assert len({json.dumps(one, sort_keys=True) for one in options}) == len(experiment.of.arms)
            for one in options:
                if one.get("score") == "additive":
                    assert one["estimator"] == "first_order"
        assert planned(part).seeds == 3
        assert experiment.of.baseline in experiment.arms


def test_all_cells_of_translation_are_arms_but_those_that_agree():
    arms = EXPERIMENTS["translation"].of.arms
    assert len(arms) == 1 + 2 * 4 * 3 + 4
    assert sum("additive" in name for name in arms) == 4
    said = EXPERIMENTS["translation"].of.caveats(planned("translation"), ())
    assert any("An additive score with another estimator" in one for one in said)
    assert any("8 of 29 arms were planned" in one for one in said)


def test_fine_tuning_goes_on_from_every_pretraining_and_from_none():
    of = EXPERIMENTS["pretraining-trec"].of
    runs = {run.arm.name: run for run in planned("pretraining-trec", seeds=1).runs()}
    assert set(runs) == {"fresh", *EXPERIMENTS["pretraining-blanks"].of.arms}
    for name, run in runs.items():
        needed = needed_run(run, of)
        assert needed is not None
        assert needed.arm.name == ("80-10-10" if name == "fresh" else name)
