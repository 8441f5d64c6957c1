"""Audits and swaps of trainings on text by their folder: on their own test examples, whatever they infer by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fenchel
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.report.reproduce import command as repeated
from fenchel.auditing.trained_examples import TrainedExamples
from fenchel.errors import InputError
from fenchel.swap import SwapReport, swap
from fenchel.train import load_model
from tests.cli.conftest import Command
from tests.train.text.small_texts import write_trec

TRAINING = ("--epochs", "2", "--batch-size", "8", "--width", "8", "--heads", "2", "--precision", "float32")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trec(tmp_path_factory.mktemp("data"), test=30)


@pytest.fixture(scope="module", params=["first_order", "exact"])
def training(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fenchel.cli import main

    place = tmp_path_factory.mktemp("training") / "run"
    line = ("--data", data, "--out", place, "--estimator", request.param, *TRAINING)
    assert main(["train", "--model", "attention-pooling", *map(str, line)]) == 0
    return place


def test_an_audit_reads_the_test_examples(command: Command, training: Path, tmp_path: Path) -> None:
    done = command("audit", training, "--out", tmp_path / "audit")
    assert done.code == 0
    report = AuditReport.load(tmp_path / "audit")
    examples = TrainedExamples(training)
    inputs = [batch.inputs for batch in examples.batches()]
    model = load_model(training)
    with fenchel.nn.use_estimator(model, "first_order"):
        expected = fenchel.audit(model, None, inputs, space="key")
    for name in ("gap_mean", "queries", "total_variation_mean"):
        assert [head[name] for head in report.heads] == pytest.approx(
            [head[name] for head in expected.heads], rel=1e-6
        )
    assert {head["queries"] for head in report.heads} == {30}
    assert report.manifest["texts"].endswith("test sentences")
    exact = json.loads((training / "results.json").read_text())["options"]["estimator"] == "exact"
    assert ("The model itself infers by its exact estimate" in report.manifest["convention"]) == exact
    assert repeated(report.manifest).startswith(f"fenchel audit {training} --space key --alpha 1")


def test_some_of_them_are_the_same_at_every_call(training: Path) -> None:
    some = [TrainedExamples(training, 7) for _ in range(2)]
    documents = [[batch.documents for batch in one.batches()] for one in some]
    assert documents[0] == documents[1]
    assert sum(map(len, documents[0])) == 7
    (whole,) = TrainedExamples(training).batches()
    (part,) = some[0].batches()
    rows = torch.tensor(part.documents) - 1
    width = part.inputs["numbers"].shape[1]
    assert torch.equal(part.inputs["numbers"], whole.inputs["numbers"][rows, :width])
    with pytest.raises(InputError, match=r"31 test examples were asked for, and .* has 30"):
        TrainedExamples(training, 31)


def test_a_swap_measures_what_the_training_measured(
    command: Command, training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(
        "swap", training, "--out", "swap", "--per-head", "--alphas", "0.5,1.5", "--bootstrap", "100"
    )
    assert done.code == 0
    report, results = SwapReport.load(tmp_path / "swap"), json.loads((training / "results.json").read_text())
    last, trained_with = results["epochs"][-1], results["options"]["estimator"]
    own = report.arm("model" if trained_with == "first_order" else "exact")
    assert ("was trained with its exact estimate" in report.finding) == (trained_with == "exact")
    assert own["score"] == pytest.approx(last["test_accuracy"])
    assert own["loss"] == pytest.approx(last["test_loss"], rel=1e-4)
    audited = command("audit", training, "--out", "audit", "--baseline", "none", "--swap", "swap")
    assert audited.code == 0
    effects = json.loads((tmp_path / "audit" / "patterns.json").read_text())["effects"]
    assert effects["quality"] == "loss"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--text", "a.txt"), "Leave --text"),
        (("--test-images", "5"), "say how many with test examples"),
        (("--test-examples", "0"), "test examples is 0"),
        (("--closeness", "sparsemax"), "the audit is to measure tsallis:2"),
        (("--space", "input", "--max-length", "5"), "max length is an option of texts"),
    ],
)
def test_what_an_audit_cannot_do_with_them_is_said(
    command: Command, training: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "a.txt").write_text("who is it ?\n")
    words = [str(tmp_path / "a.txt") if word == "a.txt" else word for word in arguments]
    done = command("audit", training, "--out", tmp_path / "out", *words)
    assert done.code in (2, 3, 4)
    assert said.lower() in done.line.lower()


def test_other_data_are_noticed(command: Command, data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "data"
    moved.mkdir()
    for file in data.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert (
        command(
            "train", "--model", "attention-pooling", "--data", moved, "--out", tmp_path / "run", *TRAINING
        ).code
        == 0
    )
    (moved / "raw_TREC.test").write_text("HUM:ind Who is it ?\n")
    with pytest.raises(InputError, match=r"test_sentences_sha256 .* is another than when"):
        fenchel.audit(str(tmp_path / "run"))
    (moved / "raw_TREC.test").unlink()
    with pytest.raises(InputError, match="which cannot be read here"):
        swap(str(tmp_path / "run"))


def test_images_have_a_number_of_their_own(tmp_path: Path) -> None:
    from tests.train.small_trainings import trained

    trained(tmp_path)
    with pytest.raises(InputError, match=r"of a training on images. Say how many with test images"):
        fenchel.audit(str(tmp_path), test_examples=3)
