"""An experiment trains every run once, goes on where it stopped, shares its folder, and refuses strangers."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fenchel.data.shard import Shard
from fenchel.errors import InputError, OutputError
from fenchel.experiments import ARMS, BUDGETS, EXPERIMENTS, ExperimentReport, report_on, run_experiment
from fenchel.experiments.folder import PLAN_FORM, ExperimentFolder
from fenchel.experiments.observer import SilentExperimentObserver
from fenchel.experiments.plan import Plan
from fenchel.experiments.run import planned
from fenchel.experiments.training import options_of
from fenchel.storage import Form, read_document, write_document
from fenchel.train import TrainOptions
from fenchel.train.result import RESULTS_FORM
from fenchel.train.vision import ImageClassification
from tests.experiments.small_experiments import StandIn, diverging, few_images, result_of

pytestmark = pytest.mark.usefixtures("few")


def table2(folder: Path, trainer: Any, **given: Any) -> ExperimentReport:
    return run_experiment("table2", folder, **{"data": ["fashion-mnist"], "trainer": trainer, **given})


def modified(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("seed-*/results.json")}


class Watching(SilentExperimentObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def began(self, run, position):
        self.told.append(f"began {run.arm.name} {run.seed}, {position}")
        return super().began(run, position)

    def kept(self, run, position, record):
        self.told.append(f"kept {run.arm.name} {run.seed}")

    def ended(self, run, position, record):
        self.told.append(f"ended {run.arm.name} {run.seed}: {record.headline}")

    def diverged(self, run, position, reason):
        self.told.append(f"diverged {run.arm.name} {run.seed}: {reason}")

    def left(self, run, position):
        self.told.append(f"left {run.arm.name} {run.seed}")


def test_table_2_trains_both_arms_with_every_seed_on_the_same_options(tmp_path):
    trainer = StandIn()
    report = table2(tmp_path, trainer)
    arms = [
        ("vit/none", 0),
        ("ot-vit/zero", 0),
        ("vit/none", 1),
        ("ot-vit/zero", 1),
        ("vit/none", 2),
        ("ot-vit/zero", 2),
    ]
    assert trainer.names == [("fashion-mnist", arm, 3e-4, seed) for arm, seed in arms]
    shared = {
        json.dumps({**one.to_json(), "model": "", "extra_preference": "", "seed": 0})
        for one in trainer.trained
    }
    assert len(shared) == 1
    assert report.finished
    assert {path.name for path in tmp_path.iterdir()} >= {
        "results.json",
        "table.md",
        "curves.png",
        "fashion-mnist",
    }
    assert (tmp_path / "fashion-mnist" / "ot-vit" / "lr-0.0003" / "seed-2" / "results.json").exists()


def test_the_smoke_budget_is_what_runs_by_default(tmp_path):
    trainer = StandIn()
    table2(tmp_path, trainer, seeds=1)
    (first, *_) = trainer.trained
    assert (first.train_images, first.test_images, first.epochs) == (2_000, 1_000, 2)
    assert (first.batch_size, first.recipe, first.width, first.depth) == (128, "paper", 256, 6)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_decides_images_and_epochs(name):
    setting, budget = planned("table2", budget=name).setting, BUDGETS[name]
    assert [setting[key] for key in ("train_images", "test_images", "epochs")] == [*budget.options.values()]


def test_budgets_grow():
    sizes = [
        (budget.options["train_images"] or 60_000) * (budget.options["epochs"] or 0)
        for budget in BUDGETS.values()
    ]
    assert sizes == sorted(sizes)
    assert BUDGETS["paper"].options["train_images"] is None


@pytest.mark.parametrize(
    ("name", "count", "rates", "data"),
    [
        ("table1", 18, [3e-3, 3e-4, 3e-5], ["cifar100"]),
        ("table2", 18, [3e-4], ["fashion-mnist", "cifar10", "cifar100"]),
        ("ablation", 15, [3e-4], ["fashion-mnist"]),
    ],
)
def test_what_an_experiment_runs(name, count, rates, data):
    plan = planned(name)
    assert len(list(plan.runs())) == count == len({run.place for run in plan.runs()})
    assert list(plan.learning_rates) == rates
    assert list(plan.data) == data
    assert plan.arms == EXPERIMENTS[name].arms


def test_arms_are_five_different_trainings():
    plan = planned("ablation", seeds=1)
    asked = [TrainOptions.from_json(options_of(run, plan).to_json()).resolved() for run in plan.runs()]
    assert [(one.model, one.extra_preference, one.joins) for one in asked] == [
        ("vit", "none", False),
        ("ot-vit", "zero", True),
        ("ot-vit", "shared", True),
        ("ot-vit", "none", False),
        ("vit", "shared", True),
    ]
    assert list(ARMS) == list(plan.arms)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"options": {"epochs": 7}}, lambda plan: plan.setting["epochs"] == 7),
        ({"options": {"train_images": 20}}, lambda plan: plan.setting["train_images"] == 20),
        ({"options": {"recipe": "strong"}}, lambda plan: plan.setting["label_smoothing"] == 0.1),
        ({"arms": ["vit-extra", "vit"]}, lambda plan: plan.arms == ("vit", "vit-extra")),
        ({"learning_rates": [1e-4, 1e-3]}, lambda plan: plan.learning_rates == (1e-3, 1e-4)),
        ({"seeds": 5}, lambda plan: plan.seeds == 5),
        ({"budget": "desk"}, lambda plan: plan.budget == "desk" and plan.setting["epochs"] == 4),
        ({"data": ["cifar10", "cifar10"]}, lambda plan: plan.data == ("cifar10",)),
    ],
)
def test_what_is_asked_for_is_planned(given, found):
    assert found(planned("table2", **given))
    assert not found(planned("table2"))


def test_finished_runs_are_kept(tmp_path):
    first = table2(tmp_path, StandIn())
    before = modified(tmp_path)
    trainer, observer = StandIn(), Watching()
    again = table2(tmp_path, trainer, observer=observer)
    assert trainer.trained == []
    assert modified(tmp_path) == before
    assert again == first
    assert observer.told[:2] == ["kept vit 0", "kept ot-vit 0"]


def test_an_interrupted_experiment_goes_on_with_the_run_that_stopped(tmp_path):
    def stop(options: TrainOptions) -> None:
        if (options.model, options.seed) == ("ot-vit", 1):
            # What a training leaves that was interrupted after its first epoch.
            folder = tmp_path / "fashion-mnist" / "ot-vit" / "lr-0.0003" / "seed-1"
            result_of(options, 0.5, epochs=1).write(folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table2(tmp_path, StandIn(before=stop))
    partial = ExperimentReport.load(tmp_path)
    assert not partial.finished
    assert [(one.arm, one.seed) for one in partial.records] == [("vit", 0), ("ot-vit", 0), ("vit", 1)]
    assert "Partial: 3 of 6 runs have finished." in partial.caveats
    trainer = StandIn()
    report = table2(tmp_path, trainer)
    assert [name[1:] for name in trainer.names] == [
        ("ot-vit/zero", 3e-4, 1),
        ("vit/none", 3e-4, 2),
        ("ot-vit/zero", 3e-4, 2),
    ]
    assert report.finished
    uninterrupted = table2(tmp_path.parent / "whole", StandIn())
    assert report == uninterrupted


def test_more_seeds_and_arms_stand_beside_what_is_there(tmp_path):
    table2(tmp_path, StandIn(), seeds=2)
    trainer = StandIn()
    report = table2(tmp_path, trainer, seeds=1, arms=["ot-vit-alone"])
    assert trainer.names == [("fashion-mnist", "ot-vit/none", 3e-4, 0)]
    assert report.plan.arms == ("vit", "ot-vit", "ot-vit-alone")
    assert report.plan.seeds == 2
    assert len(report.records) == 5
    trainer = StandIn()
    wider = table2(tmp_path, trainer, seeds=3, data=["fashion-mnist", "cifar10"], learning_rates=[3e-4, 1e-3])
    assert len(trainer.trained) == 2 * 3 * 2 * 2 - 4
    assert (wider.plan.data, wider.plan.learning_rates) == (("fashion-mnist", "cifar10"), (1e-3, 3e-4))


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        (
            {"budget": "desk"},
            "budget: 'smoke' there, 'desk' asked for; epochs: 2 there, 4 asked for; test images: 1000 there",
        ),
        ({"options": {"epochs": 3}}, "epochs: 2 there, 3 asked for"),
        ({"options": {"batch_size": 64}}, "batch size: 128 there, 64 asked for"),
        ({"options": {"precision": "float32"}}, "precision: 'auto' there, 'float32' asked for"),
        ({"options": {"recipe": "strong"}}, "recipe: 'paper' there, 'strong' asked for"),
    ],
)
def test_another_budget_in_the_same_folder_is_refused(tmp_path, given, difference):
    table2(tmp_path, StandIn(), seeds=1)
    before = modified(tmp_path)
    trainer = StandIn()
    with pytest.raises(InputError, match="holds another experiment than the one asked for") as caught:
        table2(tmp_path, trainer, **given)
    assert difference in str(caught.value)
    assert trainer.trained == []
    assert modified(tmp_path) == before


def test_a_plan_of_which_nothing_was_begun_gives_way(tmp_path):
    def refuse(options: TrainOptions) -> None:
        raise InputError("too many images were asked for.")

    with pytest.raises(InputError, match="too many images"):
        table2(tmp_path, StandIn(before=refuse), options={"train_images": 70_000})
    report = table2(tmp_path, StandIn())
    assert report.plan.setting["train_images"] == 2000
    assert report.finished


def test_a_plan_of_which_a_run_is_being_trained_does_not_give_way(tmp_path):
    folder, plan = ExperimentFolder(tmp_path), planned("table2", ["fashion-mnist"])
    folder.join(plan)
    (_, busy, *_) = plan.runs()
    with folder.claimed(busy), pytest.raises(InputError, match="epochs: 2 there, 4 asked for"):
        folder.join(planned("table2", ["fashion-mnist"], "desk"))


def test_another_experiment_or_other_files_in_the_same_folder_are_refused(tmp_path, monkeypatch):
    table2(tmp_path, StandIn(), seeds=1)
    with pytest.raises(InputError, match="experiment: 'table2' there, 'ablation' asked for"):
        run_experiment("ablation", tmp_path, trainer=StandIn())
    monkeypatch.setattr(ImageClassification, "read", staticmethod(lambda name: few_images(name, train=44)))
    with pytest.raises(InputError, match=r"files of fashion-mnist: 40 \+ 20 images .* and 44 \+ 20 images"):
        table2(tmp_path, StandIn(), seeds=1)


@pytest.mark.parametrize("stranger", ["results.json", "checkpoint.safetensors", "heads.json"])
def test_the_folder_of_something_else_is_refused(tmp_path, stranger):
    (tmp_path / stranger).write_text("{}")
    with pytest.raises(InputError, match=f"holds {stranger}, which is not of an experiment"):
        table2(tmp_path, StandIn())
    assert [path.name for path in tmp_path.iterdir()] == [stranger]


def test_a_file_in_place_of_the_folder_and_a_damaged_plan(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file; expected a folder"):
        table2(tmp_path / "file", StandIn())
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(InputError, match=r"experiment\.json is no plan of an experiment: it is no JSON"):
        table2(tmp_path, StandIn())
    write_document(tmp_path / "experiment.json", replace(PLAN_FORM, version=99), {})
    with pytest.raises(InputError, match="has schema 99 of a plan of an experiment, of a later version"):
        table2(tmp_path, StandIn())


def test_a_run_of_another_training_is_refused(tmp_path):
    table2(tmp_path, StandIn(), seeds=1)
    place = tmp_path / "fashion-mnist" / "vit" / "lr-0.0003" / "seed-0"
    options = TrainOptions(data="fashion-mnist", model="vit", epochs=9)
    result_of(options, 0.9).write(place)
    with pytest.raises(
        InputError,
        match="holds another training than the plan's; they differ in epochs: 9 there, 2 asked for",
    ):
        table2(tmp_path, StandIn(), seeds=1)


def test_what_the_trainer_refuses_names_the_run(tmp_path):
    def refuse(options: TrainOptions) -> None:
        raise InputError("the checkpoint is damaged.")

    with pytest.raises(
        InputError,
        match=r"fashion-mnist, vit, learning rate 0.0003, seed 0: the checkpoint is damaged.*remove",
    ):
        table2(tmp_path, StandIn(before=refuse))


def test_what_is_set_of_the_transport_is_not_asked_of_the_model_without(tmp_path):
    trainer = StandIn()
    table2(tmp_path, trainer, seeds=1, options={"gamma": 2.0, "alpha": 3.0, "cost": "cosine"})
    assert [(one.gamma, one.alpha, one.cost) for one in trainer.trained] == [
        (None, 1.0, "dot"),
        (2.0, 3.0, "cosine"),
    ]
    again = StandIn()
    assert table2(tmp_path, again, seeds=1, options={"gamma": 2.0, "alpha": 3.0, "cost": "cosine"}).finished
    assert again.trained == []


@pytest.mark.parametrize("changes", [{"gamma": None, "precision": "auto"}, {"precision": "bfloat16"}])
def test_a_run_counts_whether_or_not_it_says_what_gamma_and_precision_came_to(tmp_path, changes):
    report = table2(tmp_path, StandIn(), seeds=1)
    for path in tmp_path.rglob("ot-vit/*/seed-0/results.json"):
        written = read_document(path, RESULTS_FORM)
        written["options"].update(changes)
        write_document(path, RESULTS_FORM, written)
    assert report_on("table2", tmp_path) == report


def test_shards_share_the_runs(tmp_path):
    first, second = StandIn(), StandIn()
    partial = table2(tmp_path, first, shard=Shard(0, 2))
    assert not partial.finished
    whole = table2(tmp_path, second, shard=Shard(1, 2))
    assert whole.finished
    assert [len(first.trained), len(second.trained)] == [3, 3]
    assert not set(first.names) & set(second.names)
    assert whole == table2(tmp_path.parent / "whole", StandIn())


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path):
    folder = ExperimentFolder(tmp_path)
    (busy, *_) = planned("table2", ["fashion-mnist"]).runs()
    trainer, observer = StandIn(), Watching()
    with folder.claimed(busy) as claimed:
        assert claimed
        report = table2(tmp_path, trainer, observer=observer)
    assert observer.told[0] == "left vit 0"
    assert len(trainer.trained) == 5
    assert not report.finished
    assert table2(tmp_path, StandIn()).finished


def _work(folder: str, log: str) -> None:
    def note(options: TrainOptions) -> None:
        import time

        with Path(log).open("a") as file:
            file.write(f"{options.model} {options.seed}\n")
        time.sleep(0.2)

    table2(Path(folder), StandIn(before=note))


@pytest.mark.skipif(os.name == "nt", reason="processes are forked, so that they read the same images")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_processes_with_one_folder_train_every_run_once(tmp_path):
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(str(tmp_path / "out"), str(log))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    trained = log.read_text().splitlines()
    assert sorted(trained) == sorted(f"{model} {seed}" for model in ("vit", "ot-vit") for seed in range(3))
    assert ExperimentReport.load(tmp_path / "out").finished


def test_a_run_that_diverges_has_no_result_and_the_others_go_on(tmp_path):
    observer = Watching()
    report = table2(tmp_path, StandIn(before=diverging("ot-vit", 1)), observer=observer)
    assert report.finished
    assert len(report.records) == 5
    assert report.diverged == ("fashion-mnist, ot-vit, learning rate 0.0003, seed 1",)
    assert any("Without a result" in caveat and "ot-vit" in caveat for caveat in report.caveats)
    assert "diverged ot-vit 1: the training loss became nan at step 7 of 10." in observer.told
    assert [cell.seeds for cell in report.cells] == [(0, 1, 2), (0, 2)]
    trainer = StandIn()
    assert table2(tmp_path, trainer) == report
    assert trainer.trained == []


def test_observer_is_told(tmp_path):
    observer = Watching()
    table2(tmp_path, StandIn(), seeds=1, observer=observer)
    assert observer.told == [
        "began vit 0, run 1 of 2",
        "ended vit 0: 0.8",
        "began ot-vit 0, run 2 of 2",
        "ended ot-vit 0: 0.81",
    ]


def test_report_only_makes_the_same_files_again_and_needs_no_data(tmp_path, monkeypatch):
    report = table2(tmp_path, StandIn())
    files = {name: (tmp_path / name).read_bytes() for name in ("results.json", "table.md", "curves.png")}
    for name in files:
        (tmp_path / name).unlink()
    monkeypatch.setattr(ImageClassification, "read", staticmethod(lambda name: pytest.fail("data were read")))
    assert report_on("table2", tmp_path) == report
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_report_only_on_nothing_or_on_something_else(tmp_path):
    with pytest.raises(InputError, match="holds no experiment"):
        report_on("table2", tmp_path / "nowhere")
    table2(tmp_path, StandIn(), seeds=1)
    with pytest.raises(InputError, match="holds the experiment 'table2', not 'table1'"):
        report_on("table1", tmp_path)


def test_threads_are_set_while_it_runs(tmp_path):
    import torch

    seen: list[int] = []
    before = torch.get_num_threads()
    table2(tmp_path, StandIn(before=lambda options: seen.append(torch.get_num_threads())), seeds=1, threads=3)
    assert seen == [3, 3]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 0}, "seeds is 0; expected a whole number of runs an arm from 1"),
        ({"seeds": 1.5}, "seeds is 1.5"),
        ({"arms": ["vit", "vat"]}, "arms is 'vat'; expected some of vit, ot-vit, ot-vit-shared"),
        ({"arms": []}, "arms is empty"),
        ({"budget": "huge"}, r"budget is 'huge'; expected one of: smoke \(minutes on two CPU cores"),
        ({"data": ["svhn"]}, "data is 'svhn'"),
        ({"data": []}, "data is empty"),
        ({"data": ["a/b", "a:b"]}, "data names 'a/b' and 'a:b', whose results would share the folder a-b"),
        (
            {"learning_rates": [0.0]},
            r"learning rates holds 0.0; expected 1 to 100 numbers, each a finite",
        ),
        ({"learning_rates": []}, "learning rates is empty"),
        ({"options": {"epochs": 0}}, "epochs is 0"),
        ({"options": {"depht": 3}}, "'depht' is no option of a training"),
        ({"options": {"seed": 3}}, "'seed' is not shared by the runs of an experiment"),
        ({"threads": 0}, "threads is 0"),
        ({"device": "nowhere"}, "device is 'nowhere'"),
    ],
)
def test_bad_input(tmp_path, given, message):
    trainer = StandIn()
    with pytest.raises(InputError, match=message):
        table2(tmp_path / "out", trainer, **given)
    assert trainer.trained == []
    assert not (tmp_path / "out").exists()


def test_missing_data_name_those_that_are_there(tmp_path, monkeypatch):
    def only_some(name: str):
        if name == "cifar100":
            raise InputError("cifar100 is not in FENCHEL_DATA.")
        return few_images(name)

    monkeypatch.setattr(ImageClassification, "read", staticmethod(only_some))
    with pytest.raises(
        InputError,
        match=r"^cifar100 is not .* Or name those that are there, with --data fashion-mnist,cifar10\.$",
    ):
        run_experiment("table2", tmp_path / "out", trainer=StandIn())
    with pytest.raises(InputError, match=r"^cifar100 is not in FENCHEL_DATA\.$"):
        run_experiment("table1", tmp_path / "out", trainer=StandIn())
    assert not (tmp_path / "out").exists()


def test_unknown_experiment(tmp_path):
    with pytest.raises(
        InputError,
        match=r"experiment is 'table3'; expected one of table1, table2, .*fenchel experiment --help",
    ):
        run_experiment("table3", tmp_path, trainer=StandIn())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    trainer = StandIn()
    with pytest.raises(OutputError, match=r"cannot write .*out: there is a file where a folder is expected"):
        table2(tmp_path / "file" / "out", trainer)
    assert trainer.trained == []


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    table2(tmp_path, StandIn(), seeds=1)
    before = (tmp_path / "results.json").read_bytes()

    def full(path: Path, form: Form, values: Any) -> None:
        raise OutputError(f"cannot write {path}: the disk is full.")

    monkeypatch.setattr("fenchel.experiments.report.write_document", full)
    with pytest.raises(OutputError, match="the disk is full"):
        table2(tmp_path, StandIn(), seeds=2)
    assert (tmp_path / "results.json").read_bytes() == before
    monkeypatch.undo()


def test_plans_survive_json():
    plan = planned("ablation", arms=["vit", "ot-vit-alone"], learning_rates=[1e-3], seeds=4)

    def again(written: dict[str, Any]) -> Plan:
        return Plan.from_json(written, ARMS.values(), "images")

    assert again(json.loads(json.dumps(plan.to_json()))) == plan
    assert again({**plan.to_json(), "seeds": 3}) == replace(plan, seeds=3)
