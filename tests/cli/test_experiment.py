"""``fenchel experiment``: every option changes something, bad input is one line, and it says what it found."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fenchel.experiments import ExperimentReport
from fenchel.train import TrainOptions
from tests.experiments.small_experiments import StandIn, diverging, read_few_images, result_of
from tests.train.text.small_texts import write_trec


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What trains in place of ``fenchel.train.train``."""
    read_few_images(monkeypatch)
    return replaced(monkeypatch, StandIn())


def replaced(monkeypatch: pytest.MonkeyPatch, trainer: StandIn) -> StandIn:
    monkeypatch.setattr("fenchel.experiments.run.train", trainer)
    monkeypatch.setattr(
        "fenchel.experiments.run._check_first_runs", lambda *given: None
    )  # of more images than a few
    return trainer


def arguments(out: Path, *more: object) -> list[object]:
    return ["experiment", "table2", "--data", "fashion-mnist", "--out", out, *more]


def plan(out: Path) -> dict[str, Any]:
    return json.loads((out / "experiment.json").read_text())


def test_an_experiment_prints_the_table_and_what_it_shows(command, trainer, tmp_path):
    out = tmp_path / "out"
    done = command(*arguments(out))
    assert done.code == 0, done.err
    report = ExperimentReport.load(out)
    words = " ".join(done.out.split())
    for sentence in ("Table 2: test accuracy by data set, budget smoke", *report.findings, *report.caveats):
        assert " ".join(sentence.split()) in words
    assert "0.928" in words
    assert done.out.splitlines()[-2:] == [f"Table: {out / 'table.md'}", f"Curves: {out / 'curves.png'}"]
    assert done.err.splitlines()[:3] == [
        "fenchel: run 1 of 6: fashion-mnist, vit, learning rate 0.0003, seed 0",
        "fenchel: run 1 of 6: fashion-mnist, vit, learning rate 0.0003, seed 0: test accuracy 0.8000 after 5 s",
        "fenchel: run 2 of 6: fashion-mnist, ot-vit, learning rate 0.0003, seed 0",
    ]


def test_the_same_command_again_keeps_what_is_finished(command, trainer, tmp_path):
    first = command(*arguments(tmp_path))
    trained = len(trainer.trained)
    again = command(*arguments(tmp_path))
    assert again.out == first.out
    assert command(*arguments(tmp_path, "--resume")) == again
    assert len(trainer.trained) == trained == 6
    assert again.err.splitlines()[0].endswith("seed 0: finished before, test accuracy 0.8000")


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (["--budget", "desk"], {"train_images": 10_000, "test_images": 5_000, "epochs": 4}),
        (["--train-images", "30"], {"train_images": 30, "test_images": 1000, "epochs": 2}),
        (["--test-images", "12"], {"test_images": 12}),
        (["--epochs", "7"], {"epochs": 7}),
        (["--batch-size", "8"], {"batch_size": 8}),
        (["--recipe", "strong"], {"recipe": "strong", "label_smoothing": 0.1}),
        (["--precision", "bfloat16"], {"precision": "bfloat16"}),
    ],
)
def test_each_option_of_the_setting_reaches_every_run(command, trainer, tmp_path, options, setting):
    plain = TrainOptions(data="fashion-mnist", train_images=2000, test_images=1000, epochs=2).resolved()
    assert {name: getattr(plain, name) for name in setting} != setting
    done = command(*arguments(tmp_path, "--seeds", "1", *options))
    assert done.code == 0, done.err
    for asked in trainer.trained:
        assert {name: getattr(asked, name) for name in setting} == setting
    assert {name: plan(tmp_path)["setting"][name] for name in setting} == setting


@pytest.mark.parametrize(
    ("options", "planned"),
    [
        (["--data", "cifar10, cifar100"], {"data": ["cifar10", "cifar100"]}),
        (["--arms", "vit,vit-extra"], {"arms": ["vit", "vit-extra"]}),
        (["--learning-rates", "1e-3,1e-4"], {"learning_rates": [1e-3, 1e-4]}),
        (["--seeds", "2"], {"seeds": 2}),
    ],
)
def test_each_option_of_the_plan_decides_what_runs(command, trainer, tmp_path, options, planned):
    done = command(*arguments(tmp_path, *options))
    assert done.code == 0, done.err
    assert {name: plan(tmp_path)[name] for name in planned} == planned


def test_data_default_to_the_papers(command, trainer, tmp_path):
    done = command("experiment", "table1", "--out", tmp_path, "--seeds", "1")
    assert done.code == 0, done.err
    assert [name[0] for name in trainer.names] == ["cifar100"] * 6
    assert [name[2] for name in trainer.names] == [3e-3, 3e-3, 3e-4, 3e-4, 3e-5, 3e-5]


def test_threads_and_device_reach_the_training(command, tmp_path, monkeypatch):
    import torch

    seen: list[tuple[int, Any]] = []

    class Looking(StandIn):
        def __call__(self, options: TrainOptions, directory: Path, **given: Any):
            seen.append((torch.get_num_threads(), given["device"]))
            return super().__call__(options, directory, **given)

    read_few_images(monkeypatch)
    replaced(monkeypatch, Looking())
    assert command(*arguments(tmp_path / "plain", "--seeds", "1")).code == 0
    before = torch.get_num_threads()
    assert command(*arguments(tmp_path, "--seeds", "1", "--threads", before + 1, "--device", "cpu")).code == 0
    assert seen == [(before, None)] * 2 + [(before + 1, "cpu")] * 2


def test_sigterm_asks_the_training_under_way_to_stop(command, tmp_path, monkeypatch):
    class Stopped(StandIn):
        def __call__(self, options: TrainOptions, directory: Path, **given: Any):
            assert not given["stop"]()
            signal.raise_signal(signal.SIGTERM)
            assert given["stop"]()
            raise KeyboardInterrupt

    read_few_images(monkeypatch)
    replaced(monkeypatch, Stopped())
    done = command(*arguments(tmp_path))
    assert done.code == 130
    assert f"what was done is saved in {tmp_path}. Go on with: " in done.err.splitlines()[-1]


def test_shards_and_the_report_on_both(command, trainer, tmp_path):
    first = command(*arguments(tmp_path, "--shard", "0/2"))
    assert first.code == 0
    assert "Partial: 3 of 6 runs have finished." in first.out
    assert "partial: 3 of 6 runs" in first.out
    second = command(*arguments(tmp_path, "--shard", "1/2"))
    assert "artial" not in second.out
    report = command("experiment", "table2", "--out", tmp_path, "--report-only")
    assert (report.code, report.err) == (0, "")
    assert report.out == second.out


def test_only_the_first_process_prints(command, trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    done = command(*arguments(tmp_path))
    assert done.code == 0
    assert done.out == ""


def test_a_diverged_run_is_a_warning(command, tmp_path, monkeypatch):
    read_few_images(monkeypatch)
    replaced(monkeypatch, StandIn(before=diverging("vit", 0)))
    done = command(*arguments(tmp_path))
    assert done.code == 0
    assert (
        "fenchel: warning: run 1 of 6: fashion-mnist, vit, learning rate 0.0003, seed 0: no result: the"
        in done.err
    )
    assert "Without a result" in done.out


def test_an_interrupted_experiment_says_how_to_go_on(command, tmp_path, monkeypatch):
    def stop(options: TrainOptions) -> None:
        if options.seed == 1:
            raise KeyboardInterrupt

    read_few_images(monkeypatch)
    replaced(monkeypatch, StandIn(before=stop))
    monkeypatch.setattr("sys.argv", ["fenchel", *map(str, arguments(tmp_path))])
    done = command(*arguments(tmp_path))
    assert done.code == 130
    last = done.err.splitlines()[-1]
    assert f"what was done is saved in {tmp_path}. Go on with: fenchel experiment table2 --data" in last
    trainer = replaced(monkeypatch, StandIn())
    assert command(*arguments(tmp_path)).code == 0
    assert [name[3] for name in trainer.names] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--seeds", "0"], 3, "seeds is 0; expected a whole number of runs an arm from 1"),
        (["--arms", "vit,vat"], 3, "arms is 'vat'; expected some of vit, ot-vit"),
        (["--arms", ","], 3, "arms is empty"),
        (["--budget", "huge"], 3, "budget is 'huge'; expected one of: smoke"),
        (["--data", "svhn"], 3, "'svhn'"),
        (["--learning-rates", "0"], 3, "learning rates holds 0.0"),
        (["--learning-rates", "small"], 2, "'small' is not a list of numbers"),
        (["--epochs", "0"], 3, "epochs is 0"),
        (["--batch-size", "7"], 3, "batch size is 7"),
        (["--recipe", "weak"], 3, "recipe is 'weak'"),
        (["--precision", "int8"], 2, "Invalid value for '--precision'"),
        (["--device", "nowhere"], 3, "device is 'nowhere'"),
        (["--threads", "0"], 3, "threads is 0"),
        (["--shard", "2/2"], 3, "shard 2/2 does not exist"),
        (["--shard", "half"], 3, "shard 'half' is not of the form i/n"),
        (["--report-only"], 3, "holds no experiment"),
    ],
)
def test_bad_options(command, trainer, tmp_path, options, code, message):
    done = command(*arguments(tmp_path / "out", *options))
    assert done.code == code
    assert message in done.err
    assert code == 2 or done.line.startswith("fenchel: error: ")
    assert trainer.trained == []
    assert not (tmp_path / "out").exists()


def test_an_unknown_experiment_and_missing_options(command, trainer, tmp_path):
    done = command("experiment", "table9", "--out", tmp_path / "out")
    assert done.code == 3
    assert "experiment is 'table9'; expected one of table1, table2" in done.line
    assert command("experiment", "table2").code == 2
    assert command("experiment", "--out", tmp_path).code == 2


def test_another_budget_in_the_same_folder(command, trainer, tmp_path):
    assert command(*arguments(tmp_path, "--seeds", "1")).code == 0
    done = command(*arguments(tmp_path, "--seeds", "1", "--budget", "desk"))
    assert done.code == 3
    assert (
        "they differ in budget: 'smoke' there, 'desk' asked for; epochs: 2 there, 4 asked for;" in done.line
    )


def test_missing_data_are_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path / "nowhere"))
    done = command(*arguments(tmp_path / "out"))
    assert done.code == 3
    assert done.line.startswith("fenchel: error: ")
    assert "nowhere" in done.line
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_training(command, trainer, tmp_path):
    assert command(*arguments(tmp_path, "--seeds", "1")).code == 0
    options = TrainOptions(data="fashion-mnist", model="vit", epochs=9)
    result_of(options, 0.9).write(tmp_path / "fashion-mnist" / "vit" / "lr-0.0003" / "seed-0")
    done = command(*arguments(tmp_path, "--seeds", "1"))
    assert done.code == 3
    assert "holds another training than the plan's; they differ in epochs: 9 there, 2 asked for" in done.line


def test_ways_to_pool_sentences_are_compared(command, tmp_path):
    folder = write_trec(tmp_path / "trec")
    asked = ["--data", folder, "--epochs", "1", "--batch-size", "8", "--seeds", "1", "--arms", "mean,exact"]
    refused = command("experiment", "pooling", "--out", tmp_path / "out", *asked)
    assert "500 sentences to train on were asked for and there are 54" in refused.err
    done = command(
        "experiment", "pooling", "--out", tmp_path / "all", *asked, "--budget", "desk", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert "Pooling: one learned question" in done.out
    assert "To know of these numbers:" in done.out
    assert "aper" not in done.out.replace(str(tmp_path), "")
    assert ": test accuracy 0." in done.err
    wrong = command("experiment", "pooling", "--out", tmp_path / "x", *asked, "--recipe", "strong")
    assert "'recipe' is no option of a training" in wrong.line
