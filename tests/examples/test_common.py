"""The loop of the examples, with reading: killed and resumed, on two processes, and what it refuses."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import config
from huggingface_hub import constants

import common
import reading
from fenchel.errors import InputError
from tests.examples.measured import KilledError, few_toys, parquet, refuses

ENTRY = (reading.Reading, reading.ReadingOptions, reading.use, reading.UseOptions)
SMALL = {"epochs": 2, "width": 16, "heads": 2, "batch_size": 101, "quiet": True}  # three steps an epoch


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(reading, "toy", few_toys)


def options(folder: Path, **more: Any) -> reading.ReadingOptions:
    return reading.ReadingOptions(out=str(folder), **SMALL | more)


def train(folder: Path, **more: Any) -> dict[str, Any]:
    return common.Training(reading.Reading, options(folder, **more)).run()


@pytest.fixture
def dies(monkeypatch):
    """Has the loss of a step raise. Without a step, nothing."""
    whole = reading.Reading.loss

    def at(step: int | None = None) -> None:
        calls = itertools.count(1)

        def loss(task: reading.Reading, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
            if next(calls) == step:
                raise KilledError
            return whole(task, model, batch)

        monkeypatch.setattr(reading.Reading, "loss", loss)

    return at


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return common.load_run(reading.Reading, reading.ReadingOptions, folder)[1].state_dict()


def test_a_killed_run_that_is_resumed_is_the_run_without_a_kill(tmp_path, dies):
    whole, often = train(tmp_path / "whole"), {"checkpoint_seconds": 0}
    dies(3)  # the last step of the first epoch
    with pytest.raises(KilledError):
        train(tmp_path / "killed", **often)
    dies(3)  # the second step of the second epoch
    with pytest.raises(KilledError):
        train(tmp_path / "killed", resume=True, **often)
    assert [path.name for path in common.checkpoints(tmp_path / "killed")] == ["checkpoint-1-1"]
    assert not (tmp_path / "killed" / common.METRICS).exists()
    dies()
    resumed = train(tmp_path / "killed", resume=True)
    for one, other in zip(whole["epochs"], resumed["epochs"], strict=True):
        assert (one["train_loss"], one["validation"]) == (other["train_loss"], other["validation"])
    assert whole["test"] == resumed["test"]
    before, after = (weights(tmp_path / name) for name in ("whole", "killed"))
    assert all(torch.equal(after[name], one) for name, one in before.items())


def test_what_a_run_refuses_leaves_it_as_it_was(tmp_path):
    with pytest.raises(InputError, match="has no checkpoint to resume"):
        train(tmp_path, resume=True)
    with pytest.raises(InputError, match="Give --out DIR"):
        common.Training(reading.Reading, reading.ReadingOptions(**SMALL))
    with pytest.raises(InputError, match="holds no run with an epoch that has ended"):
        weights(tmp_path)
    result = train(tmp_path, epochs=1)
    files = lambda: {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}  # noqa: E731
    before = files()
    refuses(
        lambda **more: train(tmp_path, **{"epochs": 1} | more),
        [
            ({}, "holds a run. Give --resume, --overwrite or another --out"),
            ({"resume": True, "width": 32}, "was begun with width 16, and now it is 32"),
        ],
    )
    assert before == files()
    again = train(tmp_path, epochs=1, resume=True)  # there is nothing left to do
    assert again["test"] == result["test"]
    assert train(tmp_path, epochs=1, overwrite=True)["test"] == result["test"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["train", "--data", "nowhere/at-all", "--out", "RUN"], r"'nowhere/at-all' is neither .*--data toy"),
        (["draw"], r"usage: reading\.py train"),
        (["train", "--depht", "3"], r"there is no option --depht\. reading\.py train --help lists all"),
        (["train", "--schedule", "fast"], r"schedule is 'fast'; expected one of constant, "),
        (["train", "--dropout", "1"], r"dropout is 1\.0; expected a share"),
        (["train", "--data", "FEW", "--out", "RUN"], r"too few rows to hold out some for validation"),
        (["train", "--data", "DAMAGED", "--out", "RUN"], r"damaged\.parquet' cannot be read \("),
    ],
)
def test_the_command_line_says_in_one_line_what_is_wrong(tmp_path, monkeypatch, told, said):
    for one in (constants, config):
        monkeypatch.setattr(one, "HF_HUB_OFFLINE", True)
    parquet(tmp_path / "few", text=["a", "b"], label=[0, 1])
    (tmp_path / "damaged.parquet").write_bytes(b"PAR")
    given = {"RUN": tmp_path, "FEW": tmp_path / "few", "DAMAGED": tmp_path / "damaged.parquet"}
    monkeypatch.setattr(sys, "argv", ["reading.py", *(str(given.get(one, one)) for one in told)])
    with pytest.raises(SystemExit, match=said) as caught:
        common.main(*ENTRY)
    assert "\n" not in str(caught.value)


def test_the_command_line_trains_and_uses(tmp_path, monkeypatch, capsys):
    given = [f"--{name}={value}" for name, value in {**SMALL, "epochs": 1, "out": tmp_path / "run"}.items()]
    monkeypatch.setattr(sys, "argv", ["reading.py", "train", *given])
    common.main(*ENTRY)
    test = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("test: ").split("; in ")[0])
    assert test == json.loads((tmp_path / "run" / common.METRICS).read_text())["test"]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "argv", ["reading.py", "use", str(tmp_path / "run"), "--text", "stop leeeft"])
    common.main(*ENTRY)
    assert json.loads(capsys.readouterr().out)["said"] in reading.ORDERS
