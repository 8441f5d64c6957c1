"""``fenchel swap`` and ``fenchel audit --swap`` of what ``fenchel train`` made of images."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.run import audit
from fenchel.data import load
from fenchel.data.standardise import Standardise
from fenchel.errors import InputError
from fenchel.nn import use_estimator
from fenchel.swap import SwapReport, swap
from fenchel.train import load_model
from tests.cli.conftest import Command
from tests.data.image_files import drawn_images, write_idx_folder
from tests.train.small_trainings import trained
from tests.vision_models import image_folder

SMALL = ("--alphas", "0.5,1.5", "--bootstrap", "100")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = drawn_images(40, channels=1, side=8), torch.arange(40) % 10
    test = drawn_images(20, channels=1, side=8, seed=1), torch.arange(20) % 10
    return write_idx_folder(tmp_path_factory.mktemp("data") / "digits", train, test)


@pytest.fixture(scope="module")
def training(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fenchel.cli import main

    place = tmp_path_factory.mktemp("training") / "vit"
    options = {
        "data": data,
        "model": "vit",
        "out": place,
        "learning-rate": 1e-2,
        "epochs": 2,
        "batch-size": 8,
    }
    sizes = {"width": 16, "depth": 2, "heads": 2, "mlp-width": 16, "patch-size": 4, "precision": "float32"}
    words = [(f"--{name}", str(value)) for name, value in {**options, **sizes}.items()]
    assert main(["train", *(word for pair in words for word in pair)]) == 0
    return place


def test_the_loss_and_the_accuracy_are_those_of_the_training(
    command: Command, training: Path, data: Path, tmp_path: Path
) -> None:
    done = command("swap", training, "--out", tmp_path / "swap", "--per-layer", *SMALL)
    assert done.code == 0
    assert "Accuracy" in done.out
    report = SwapReport.load(tmp_path / "swap")
    last = json.loads((training / "results.json").read_text())["epochs"][-1]
    own = report.arm("model")
    assert own["score"] == pytest.approx(last["test_accuracy"])
    assert own["loss"] == pytest.approx(last["test_loss"], rel=1e-4)
    test = load(data, split="test")
    model = load_model(training)
    with torch.no_grad(), use_estimator(model, "exact", layers=[1]):
        output = model(Standardise(test.mean, test.std)(test.images))
    assert report.arm("exact", layer=1)["loss"] == pytest.approx(
        float(cross_entropy(output, test.labels)), rel=1e-4
    )
    assert "Exact inference takes the cross-entropy from" in report.finding
    assert "Exact inference takes the accuracy from" in report.finding
    page = (tmp_path / "swap" / "swap.html").read_text(encoding="utf-8")
    assert "20 images" in page
    assert "Accuracy" in page
    assert "token" not in page.split('id="manifest"')[0]


def test_what_the_audit_says_to_run_next_goes_beside_it(
    command: Command, training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    audited = command("audit", training, "--out", "audit", "--test-images", "10", "--baseline", "none")
    assert audited.code == 0
    report = AuditReport.load(tmp_path / "audit")
    printed = next(found.command for found in report.suggestions if found.command)
    assert f"  {printed}\n" in audited.out
    assert shlex.split(printed)[2:5] == [str(training), "--test-images", "10"]
    assert command(*shlex.split(printed)[1:], *SMALL).code == 0
    out = shlex.split(printed)[-1]
    beside = command(
        "audit", training, "--out", "beside", "--test-images", "10", "--space", "key", "--swap", out
    )
    assert beside.code == 0
    effects = json.loads((tmp_path / "beside" / "patterns.json").read_text())["effects"]
    swapped = SwapReport.load(out)
    assert effects["quality"] == "loss"
    for head in effects["heads"]:
        assert head["effect"] == swapped.arm("exact", layer=head["layer"], head=head["head"])["hidden_change"]
    assert 'id="effects"' in (tmp_path / "beside" / "report.html").read_text(encoding="utf-8")
    others = command("audit", training, "--out", "others", "--swap", out, "--baseline", "none")
    assert others.code == 3
    assert "they differ in text sha256" in others.line


def test_a_folder_of_images_has_outputs_alone(command: Command, training: Path, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    line = ("--images", folder, "--out", tmp_path / "swap", "--per-head", *SMALL)
    assert command("swap", training, *line).code == 0
    report = SwapReport.load(tmp_path / "swap")
    assert report.results["quality"] is None
    assert report.results["units"] == {"images": 3}
    assert audit(str(training), images=folder, space="key").beside_swap(report).effects is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "words.txt"], "reads images"),
        (["--pairs", "pairs.txt"], "scored pairs are for models of transformers"),
        (["--images", "nowhere"], "there is no folder nowhere"),
        (["--max-length", "5"], "max length is an option of texts, and images were given"),
        (["--test-images", "21"], "a subset of 21 images was asked for and there are 20"),
        (["--test-images", "0"], "test images is 0"),
        (["--layers", "3", "--per-layer"], r"layers [3] do not exist"),
        (["--heads", "1"], "none is swapped alone"),
        (["--revision", "main"], "revision 'main' was asked of"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    command: Command,
    training: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("a b c\nd e f\ng h\n")
    done = command("swap", training, "--out", "swap", *options)
    assert done.code in (2, 3)
    assert message in done.line
    assert not (tmp_path / "swap").exists()


def test_test_images_that_are_gone_or_others(training: Path, tmp_path: Path) -> None:
    trained(tmp_path / "given", epochs=1)
    with pytest.raises(
        InputError, match=r"was tested on 'small', which cannot be read here.*--images FOLDER"
    ):
        swap(str(tmp_path / "given"))
    with pytest.raises(InputError, match="test images is 3, which is about what a training was"):
        audit(str(training), images=tmp_path, test_images=3)
    other = drawn_images(20, channels=1, side=8, seed=5), torch.arange(20) % 10
    options = json.loads((training / "results.json").read_text())["options"]
    place = Path(options["data"])
    kept = {path: path.read_bytes() for path in place.iterdir()}
    try:
        write_idx_folder(place, (drawn_images(40, channels=1, side=8), torch.arange(40) % 10), other)
        with pytest.raises(InputError, match=r"are others than those that .* was tested on"):
            swap(str(training))
    finally:
        for path in place.iterdir():
            if path not in kept:
                path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)
