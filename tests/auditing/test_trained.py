"""Audits of what ``fenchel train`` made, by the folder of the training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import fenchel
from fenchel.cli import main
from fenchel.errors import InputError, ModelError
from fenchel.train import load_model
from tests.train.small_trainings import images, trained
from tests.vision_models import image_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("training")
    trained(place, epochs=1)
    return place


def test_images_are_made_as_those_that_were_trained_on(folder: Path, tmp_path: Path) -> None:
    pixels = images(3).images
    for number, one in enumerate(pixels):
        Image.frombytes("L", (8, 8), bytes(one.flatten().tolist())).save(tmp_path / f"{number}.png")
    report = fenchel.audit(str(folder), images=tmp_path, baseline="none")
    standardised = (pixels / 255 - 0.13) / 0.15
    expected = fenchel.audit(load_model(folder), None, [{"images": standardised}])
    assert [record["gap_mean"] for record in report.heads] == pytest.approx(
        [record["gap_mean"] for record in expected.heads], rel=1e-4
    )
    assert [record["queries"] for record in report.heads] == [15, 15, 3, 3]
    assert report.manifest["model"] == str(folder)
    assert report.manifest["revision"].startswith("sha256:")
    example = next(iter(report.examples.values()))
    assert example.picture is not None
    assert (example.picture.rows, example.picture.columns, example.picture.extra) == (2, 2, 1)


def test_any_images_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    source = image_folder(tmp_path / "images")
    line = [
        "audit",
        str(folder),
        "--images",
        str(source),
        "--out",
        str(tmp_path / "out"),
        "--baseline",
        "twin",
    ]
    assert main(line) == 0
    assert "15 positions of 3 images" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_the_twin_of_a_training_has_its_configuration(folder: Path, tmp_path: Path) -> None:
    report = fenchel.audit(str(folder), images=image_folder(tmp_path), baseline="twin", seed=4)
    assert report.manifest["twin"] == "audited"
    assert [record["queries"] for record in report.twin_heads] == [15, 15, 3, 3]
    assert not torch.isnan(torch.tensor([record["gap_mean"] for record in report.twin_heads])).any()


def test_wrong_uses(folder: Path, tmp_path: Path) -> None:
    source = image_folder(tmp_path / "images")
    with pytest.raises(InputError, match=r"folder of a training, whose ViT reads images \(--images FOLDER\)"):
        fenchel.audit(str(folder), None, ["a text"])
    with pytest.raises(InputError, match="revision 'main' was asked of"):
        fenchel.audit(str(folder), images=source, revision="main")
    trained(tmp_path / "ot", epochs=1, model="ot-vit")
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn is a TransportAttention.*layers 1$"):
        fenchel.audit(str(tmp_path / "ot"), images=source)
    assert len(fenchel.audit(str(tmp_path / "ot"), images=source, layers=[1]).heads) == 2
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "checkpoint.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="checkpoint"):
        fenchel.audit(str(damaged), images=source)
