"""``fenchel train``: options reach the training, progress and errors reach people, and Ctrl-C says how to go on."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fenchel.cli.interruption import what_was_saved
from fenchel.cli.stopping import stopping_at_a_step
from fenchel.cli.training import LineObserver, TerminalObserver, epoch_line, state
from fenchel.train import Progress
from fenchel.train.folder import TRAINING
from tests.train.small_trainings import Recorder, images
from tests.train.text.small_texts import write_trec

ROOT = Path(__file__).parents[2]
SMALL = (
    "--epochs", "2", "--batch-size", "8", "--learning-rate", "3e-3", "--width", "16", "--depth", "1", "--heads", "2",
    "--mlp-width", "16", "--precision", "float32", "--device", "cpu",
)  # fmt: skip


def write_idx(path: Path, values: torch.Tensor) -> None:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + bytes(values.to(torch.uint8).flatten().tolist())))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four IDX files with tiny images."""
    folder = tmp_path_factory.mktemp("digits")
    for stem, split in (("train", images()), ("t10k", images(20, seed=1))):
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", split.images[:, 0])
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", split.labels)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Any]:
    """What a training with no option but those that make it small comes to."""
    from fenchel.cli import main

    folder = tmp_path_factory.mktemp("plain")
    assert main(["train", "--data", str(data), "--out", str(folder), *SMALL]) == 0
    return results(folder)


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def losses(found: dict[str, Any]) -> list[list[float]]:
    return [[epoch["train_loss"], epoch["test_loss"]] for epoch in found["epochs"]]


def test_a_training_writes_its_files_and_says_what_came_of_it(command, data, tmp_path):
    done = command("train", "--data", data, "--out", tmp_path / "out", *SMALL)
    assert done.code == 0, done.err
    found = results(tmp_path / "out")
    (note,) = found["notes"]
    assert done.out == (
        f"Test accuracy {found['test_accuracy']:.4f} after 2 epochs of 40 images, "
        f"{found['model']['parameters']:,} parameters.\nNote: {note}\nCurves: {tmp_path / 'out' / 'curves.png'}\n"
    )
    first, second = done.err.splitlines()
    assert first.startswith("epoch 1/2: training loss ")
    assert first.endswith(" left")
    assert f"test loss {found['test_loss']:.4f}, accuracy {found['test_accuracy']:.4f}; " in second
    assert found["options"]["model"] == "ot-vit"
    assert found["options"]["extra_preference"] == "zero"


@pytest.mark.parametrize(
    ("option", "recorded"),
    [
        (["--model", "vit"], {"model": "vit"}),
        (["--extra-preference", "shared"], {"extra_preference": "shared"}),
        (["--join-probability", "1"], {"join_probability": 1.0}),
        (["--cost", "cosine"], {"cost": "cosine"}),
        (["--gamma", "0.5"], {"gamma": 0.5}),
        (["--alpha", "4"], {"alpha": 4.0}),
        (["--train-images", "30"], {"train_images": 30}),
        (["--test-images", "10"], {"test_images": 10}),
        (["--epochs", "1"], {"epochs": 1}),
        (["--batch-size", "4"], {"batch_size": 4}),
        (["--learning-rate", "1e-3"], {"learning_rate": 1e-3}),
        (["--recipe", "strong"], {"recipe": "strong", "label_smoothing": 0.1}),
        (["--weight-decay", "0.5"], {"weight_decay": 0.5}),
        (["--warmup-fraction", "0.5"], {"warmup_fraction": 0.5}),
        (["--label-smoothing", "0.2"], {"label_smoothing": 0.2}),
        (["--gradient-clip", "0.01"], {"gradient_clip": 0.01}),
        (["--flip", "yes"], {"flip": True}),
        (["--width", "32"], {"width": 32}),
        (["--depth", "2"], {"depth": 2}),
        (["--heads", "4"], {"heads": 4}),
        (["--mlp-width", "32"], {"mlp_width": 32}),
        (["--dropout", "0"], {"dropout": 0.0}),
        (["--patch-size", "2"], {"patch_size": 2}),
        (["--precision", "bfloat16"], {"precision": "bfloat16"}),
        (["--seed", "7"], {"seed": 7}),
        (["--evaluate-every", "2"], {"evaluate_every": 2}),
    ],
    ids=str,
)
def test_each_option_changes_the_results(command, data, tmp_path, plain, option, recorded):
    done = command("train", "--data", data, "--out", tmp_path, *SMALL, *option)
    assert done.code == 0, done.err
    found = results(tmp_path)
    assert losses(found) != losses(plain)
    assert {name: found["options"][name] for name in recorded} == recorded


def test_no_flip_takes_back_what_the_recipe_does(command, data, tmp_path):
    strong = ["--recipe", "strong", "--epochs", "1"]
    for name, option in {"flip": ["--flip", "yes"], "no-flip": ["--flip", "no"], "left": []}.items():
        assert command("train", "--data", data, "--out", tmp_path / name, *SMALL, *strong, *option).code == 0
    assert losses(results(tmp_path / "flip")) != losses(results(tmp_path / "no-flip"))
    assert losses(results(tmp_path / "left")) == losses(results(tmp_path / "no-flip"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gamma", "-1"], "gamma is -1.0; expected a finite number above 0"),
        (["--batch-size", "7"], "batch size is 7; it must be even"),
        (["--model", "vit", "--extra-preference", "zero"], "extra preference is 'zero' for the model 'vit'"),
        (["--train-images", "100000"], "100000 images was asked for and there are 40"),
        (["--data", "nowhere/at-all"], "nowhere/at-all"),
        (["--heads", "3"], "heads is 3 and width is 16; the number of heads must divide the width"),
        (["--evaluate-every", "0"], "(--evaluate-every) is 0; expected a whole number"),
        (["--model", "vit", "--gamma", "3"], "gamma is 3.0 for the model 'vit', which has no transport"),
        (["--model", "vit", "--alpha", "2"], "alpha is 2.0 for the model 'vit', which has no transport"),
        (
            ["--model", "vit", "--cost", "cosine"],
            "cost is 'cosine' for the model 'vit', which has no transport",
        ),
        (["--device", "gpu?"], "device is 'gpu?'"),
        (["--checkpoint-seconds", "-1"], "checkpoint seconds is -1.0; expected a finite number at least 0"),
        (["--resume", "--overwrite"], "contradict each other"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(command, data, tmp_path, arguments, message):
    done = command("train", "--data", data, "--out", tmp_path / "out", *SMALL, *arguments)
    assert done.code == 3
    assert message in done.line
    assert done.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "o"], "Missing option '--data'"),
        (["--data", "d"], "Missing option '--out'"),
        (["--data", "d", "--out", "o", "--epochs", "many"], "Invalid value for '--epochs'"),
    ],
)
def test_wrong_usage(command, arguments, message):
    done = command("train", *arguments)
    assert done.code == 2
    assert message in done.err


def test_an_unknown_model_or_option_of_one_is_named(command):
    wrong = command("train", "--data", "d", "--out", "o", "--model", "resnet")
    assert (wrong.code, "model is 'resnet'; expected one of" in wrong.line) == (3, True)
    wrong = command("train", "--data", "d", "--out", "o", "--model", "vit", "--set", "depth=3")
    assert (wrong.code, "no other options" in wrong.line) == (3, True)


def test_a_finished_training_is_kept_replaced_or_refused(command, data, tmp_path):
    arguments = ["train", "--data", data, "--out", tmp_path, *SMALL]
    assert command(*arguments).code == 0
    before = (tmp_path / "results.json").read_bytes()
    refused = command(*arguments)
    assert (refused.code, "do what is left with --resume" in refused.line) == (3, True)
    kept = command(*arguments, "--resume")
    assert (kept.code, kept.err) == (0, "")
    assert (tmp_path / "results.json").read_bytes() == before
    other = command(*arguments, "--resume", "--seed", "1")
    assert "differ in seed: 0 there, 1 asked for" in other.line
    assert command(*arguments, "--overwrite", "--seed", "1").code == 0
    assert results(tmp_path)["options"]["seed"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(command, data, tmp_path, monkeypatch, plain, number):
    arguments = ["train", "--data", str(data), "--out", str(tmp_path / "out dir"), *SMALL]
    observer = Recorder(2, lambda: signal.raise_signal(number))
    monkeypatch.setattr("fenchel.cli.train.observer_of_training", lambda: observer)
    monkeypatch.setattr(sys, "argv", ["fenchel", *arguments])
    handler = signal.getsignal(number)
    done = command(*arguments)
    assert done.code == 130
    asked, ended = done.err.splitlines()
    assert asked == "fenchel: stopping after this step; press Ctrl-C again to stop at once"
    assert "interrupted; 3 steps and 0 whole epochs are saved" in ended
    assert f"Go on with: fenchel train --data {data} --out '{tmp_path}/out dir' --epochs 2" in ended
    assert ended.endswith("--resume")
    assert signal.getsignal(number) is handler
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert what_was_saved(TRAINING, tmp_path / "out dir").endswith(
        "Go on with the same torchrun command and --resume"
    )
    monkeypatch.undo()
    assert command(*arguments, "--resume").code == 0
    assert losses(results(tmp_path / "out dir")) == losses(plain)


def test_a_second_ctrl_c_stops_at_once(capsys):
    with stopping_at_a_step() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert "press Ctrl-C again" in capsys.readouterr().err


def test_sigterm_is_often_sent_twice_and_still_lets_the_step_end(capsys):
    with stopping_at_a_step() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop()
    assert capsys.readouterr().err.count("stopping after this step") == 1


def test_one_of_a_thing_is_not_several(command, data, tmp_path, monkeypatch):
    done = command("train", "--data", data, "--out", tmp_path / "a", *SMALL, "--epochs", "1")
    assert " after 1 epoch of 40 images" in done.out
    observer = Recorder(6, lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr("fenchel.cli.train.observer_of_training", lambda: observer)
    done = command("train", "--data", data, "--out", tmp_path / "b", *SMALL)
    assert "interrupted; 7 steps and 1 whole epoch are saved" in done.err


def test_ctrl_c_before_anything_was_saved(command, data, tmp_path, monkeypatch):
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fenchel.train.vision.ImageClassification.read", lambda data: stop())
    done = command("train", "--data", data, "--out", tmp_path, *SMALL)
    assert (done.code, done.line) == (130, "fenchel: interrupted before anything was saved")


def test_a_loss_that_blows_up_ends_with_its_exit_code(command, data, tmp_path):
    done = command(
        "train", "--data", data, "--out", tmp_path, *SMALL, "--learning-rate", "1e38", "--epochs", "9"
    )
    assert done.code == 5
    assert "Lower --learning-rate" in done.err.splitlines()[-1]


PROGRESS = Progress(2, 5, 150, 500, {"loss": 0.512, "accuracy": 0.8231}, "images", 1803.2, 3795.0)
RECORD = {
    "epoch": 2,
    "train_loss": 0.5,
    "train_accuracy": 0.75,
    "test_loss": 0.625,
    "test_accuracy": 0.7,
    "images_per_second": 1803.2,
}  # fmt: skip


def test_progress_in_words():
    assert state(PROGRESS) == "loss 0.512, accuracy 0.823, 1,803 images/s, 1:03:15 left"
    assert epoch_line(RECORD, PROGRESS) == (
        "epoch 2/5: training loss 0.5000, accuracy 0.7500; test loss 0.6250, accuracy 0.7000; 1,803 images/s, "
        "1:03:15 left"
    )
    assert "test" not in epoch_line({**RECORD, "test_accuracy": None, "test_loss": None}, PROGRESS)


def test_a_terminal_shows_a_bar_and_keeps_the_epochs():
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80, no_color=True)
    observer = TerminalObserver(console)
    observer.started({"model": {"name": "ot-vit"}})
    observer.advanced(PROGRESS)
    observer.epoch_finished(RECORD, PROGRESS)
    observer.finished()
    shown = written.getvalue()
    assert "training ot-vit" in shown
    assert "epoch 2/5 " in shown
    assert state(PROGRESS) in shown
    assert epoch_line(RECORD, PROGRESS) in shown


def test_elsewhere_there_is_one_line_an_epoch(capsys):
    observer = LineObserver()
    observer.started({"model": {"name": "ot-vit"}})
    observer.advanced(PROGRESS)
    observer.epoch_finished(RECORD, PROGRESS)
    observer.finished()
    assert capsys.readouterr().err == epoch_line(RECORD, PROGRESS) + "\n"


def under_torchrun(*arguments: object) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    return subprocess.Popen(
        [*launcher, "fenchel", "train", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_under_torchrun_one_process_speaks(data, tmp_path):
    with under_torchrun("--data", data, "--out", tmp_path, *SMALL, "--resume") as launched:
        out, err = launched.communicate(timeout=120)
    assert launched.returncode == 0, err
    found = results(tmp_path)
    assert found["finished"]
    assert found["machine"]["processes"] == 2
    assert out.count("Test accuracy") == 1
    assert err.count("epoch 2/2") == 1


def test_under_torchrun_one_process_says_what_is_wrong(data, tmp_path):
    with under_torchrun("--data", data, "--out", tmp_path, *SMALL, "--batch-size", "6") as launched:
        _, err = launched.communicate(timeout=120)
    assert launched.returncode == 1
    assert err.count("fenchel: error: batch size is 6 for 2 processes") == 1


def test_an_error_that_is_not_said_has_its_exit_code(command, data, tmp_path, monkeypatch):
    arguments = ["train", "--data", "nowhere", "--out", tmp_path, *SMALL]
    assert "'nowhere'" in command(*arguments).line
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert command(*arguments) == (3, "", "")
    monkeypatch.setenv("FENCHEL_TRACEBACK", "1")
    assert "'nowhere'" in command(*arguments).err


def test_under_torchrun_ctrl_c_saves_the_step_that_all_processes_have_done(data, tmp_path):
    from fenchel.train.checkpoint import Checkpoint

    endless = [*SMALL, "--epochs", "100000", "--checkpoint-seconds", "1e9"]
    with under_torchrun("--data", data, "--out", tmp_path, *endless) as launched:
        assert launched.stderr is not None
        for line in launched.stderr:
            if line.startswith("epoch 1/"):
                break
        launched.send_signal(signal.SIGINT)
        _, err = launched.communicate(timeout=120)
    saved = Checkpoint.read(tmp_path).state
    assert saved.step >= 5
    assert err.count("fenchel: stopping after this step") == 1
    said = f"fenchel: interrupted; {saved.step} steps and {len(saved.epochs)} whole epoch"
    assert err.count(said) == 1, err
    assert err.count("Go on with the same torchrun command and --resume") == 1


TEXT = (
    "--epochs",
    "2",
    "--batch-size",
    "8",
    "--width",
    "8",
    "--heads",
    "2",
    "--precision",
    "float32",
    "--device",
    "cpu",
)


def test_a_classifier_of_sentences_is_trained(command, tmp_path):
    folder = write_trec(tmp_path / "trec")
    asked = ["--model", "attention-pooling", "--estimator", "exact", "--preference", "position"]
    done = command("train", "--data", folder, "--out", tmp_path / "out", *asked, *TEXT)
    assert done.code == 0, done.err
    found = results(tmp_path / "out")
    assert done.out.startswith(
        f"Test accuracy {found['test_accuracy']:.4f} after 2 epochs of 54 sentences, {found['model']['parameters']:,} "
    )
    first, second = done.err.splitlines()
    assert "; validation loss " in first
    assert "test" not in first
    assert f"; test loss {found['test_loss']:.4f}, accuracy {found['test_accuracy']:.4f}; " in second
    assert " sentences/s" in second
    wanted = {
        "estimator": "exact",
        "preference": "position",
        "learning_rate": 3e-3,
        "dropout": 0.5,
        "width": 8,
    }
    assert {name: found["options"][name] for name in wanted} == wanted
    again = command("train", "--data", folder, "--out", tmp_path / "out", *asked, *TEXT, "--resume")
    assert (again.code, again.err) == (0, "")
    other = command("train", "--data", folder, "--out", tmp_path / "mean", "--model", "mean-pooling", *TEXT)
    assert other.code == 0, other.err
    assert results(tmp_path / "mean")["test_loss"] != found["test_loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "attention-pooling", "--patch-size", "4"],
            "--patch-size is no option of the model 'attention-pooling'",
        ),
        (["--model", "mean-pooling", "--flip", "no"], "--flip is no option of the model 'mean-pooling'"),
        (
            ["--model", "mean-pooling", "--estimator", "exact"],
            "estimator is 'exact' for the model 'mean-pooling'",
        ),
        (["--model", "vit", "--estimator", "exact"], "--estimator is no option of the model 'vit'"),
        (["--train-sentences", "4"], "--train-sentences is no option of the model 'ot-vit'"),
        (
            ["--model", "mean-pooling", "--train-sentences", "99"],
            "99 sentences to train on were asked for and there are 54",
        ),
    ],
    ids=str,
)
def test_an_option_of_another_model_is_refused(command, tmp_path, arguments, message):
    folder = write_trec(tmp_path / "trec")
    done = command("train", "--data", folder, "--out", tmp_path / "out", *arguments)
    assert done.code == 3
    assert message in done.line
    assert not (tmp_path / "out").exists()
