"""Audits of images: the model's own processor, patches with their weights, positions in words, and wrong uses."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, ViTModel

import fenchel
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import HeadExample, Packing, unpacked
from fenchel.auditing.heads import counted_in_words
from fenchel.cli import main
from fenchel.errors import InputError, ModelError
from fenchel.io.storage import Mismatch, check_json
from tests.auditing.small_audits import assert_close
from tests.pages import text_of
from tests.tiny_models import tiny_model
from tests.vision_models import PATCHES, image_folder, saved_vision_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    saved_vision_model(folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 5)


def pixels_of(model_folder: Path, images: Path) -> torch.Tensor:
    processor = AutoImageProcessor.from_pretrained(model_folder, local_files_only=True)
    names = sorted(path for path in images.iterdir() if path.suffix != ".txt")
    pictures: list[Image.Image] = []
    for path in names:
        with Image.open(path) as picture:
            pictures.append(picture.convert("RGB"))
    return processor(images=pictures, return_tensors="pt")["pixel_values"]


def audited(model_folder: Path, images: Path, **options: Any) -> AuditReport:
    return fenchel.audit(
        str(model_folder), images=images, **{"baseline": "none", "dtype": "float64", **options}
    )


def test_numbers_are_those_of_the_pixels_that_the_processor_makes(model_folder: Path, images: Path) -> None:
    report = audited(model_folder, images, batch_size=2)
    pixels = pixels_of(model_folder, images)
    model = ViTModel.from_pretrained(model_folder).double().eval()
    expected = fenchel.audit(model, None, [{"pixel_values": pixels.double()}], baseline="none").heads
    assert_close(report.heads, expected)
    positions = 5 * (PATCHES + 1)
    assert report.heads[0]["queries"] == positions
    assert counted_in_words(report.manifest, report.heads) == f"{positions} positions of 5 images"
    assert report.manifest["reads"] == "images"


def test_examples_have_their_image_and_the_weight_of_every_patch(model_folder: Path, images: Path) -> None:
    report = audited(model_folder, images)
    model = ViTModel.from_pretrained(model_folder, attn_implementation="eager").double().eval()
    with torch.no_grad():
        weights = model(pixels_of(model_folder, images).double(), output_attentions=True).attentions
    for key, example in report.examples.items():
        picture: Any = example.picture
        assert (picture.rows * picture.columns, picture.extra) == (PATCHES, 1)
        own = weights[key.layer - 1][example.document - 1, key.head - 1, example.position - 1]
        assert unpacked(picture.first_order, Packing.FINE) == pytest.approx(own.tolist(), abs=1e-4)
        assert sum(unpacked(picture.exact, Packing.FINE)) == pytest.approx(1, abs=1e-3)
        assert example.token == ("[CLS]" if example.position == 1 else example.token)
        assert re.fullmatch(r"\[CLS\]|row [12], column [12]", example.token)


def test_the_command_saves_what_is_read_back_and_shown(
    model_folder: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    line = ["audit", str(model_folder), "--images", str(images), "--out", str(out), "--baseline", "none"]
    assert main([*line, "--dtype", "float64"]) == 0
    report, again = AuditReport.load(out), audited(model_folder, images)
    assert report.examples == again.examples
    assert report.heads == again.heads
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('<div class="picture">') == min(6, len(report.heads))
    assert f"({5 * (PATCHES + 1)} positions of 5 images)" in page
    words = text_of(page)
    assert f"fenchel audit {model_folder} --images {images}" in words
    of_text = re.compile(r"\b(tokens?|tokenizer|punctuation|sentence|text)\b", re.IGNORECASE)
    shown = re.sub(r"<(style|script).*?</\1>", "", page.partition('id="manifest"')[0], flags=re.DOTALL)
    assert of_text.findall(text_of(shown)) == []
    assert main(line) == 3
    assert "finished after 5 images." in capsys.readouterr().err
    record = next(iter(report.examples.values())).to_json()
    with pytest.raises(Mismatch, match="picture"):
        check_json(HeadExample, {**record, "picture": record["picture"] | {"more": 1}})
    tiny_model("vit").save_pretrained(tmp_path / "bare")
    with pytest.raises(ModelError, match=r"the image processor of .* cannot be loaded"):
        fenchel.audit(str(tmp_path / "bare"), images=images)


def test_models_and_what_they_read_have_to_fit(model_folder: Path, images: Path) -> None:
    for model, options, message in (
        (None, {"texts": ["a"]}, "both texts and images"),
        (None, {"max_length": 5}, "max length applies to texts only"),
        (None, {"images": None, "texts": ["a text"]}, r"texts without a tokenizer.*--images FOLDER"),
        (tiny_model("bert"), {}, "BertModel reads no images: its forward takes input_ids"),
        (tiny_model("vit"), {}, r"ViTModel was given images without an image processor.*\{'pixel_values': "),
    ):
        with pytest.raises(InputError, match=message):
            fenchel.audit(model or str(model_folder), **{"images": images, **options})


def test_a_model_that_cuts_its_images_into_windows_is_audited_window_by_window(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pixels = torch.rand(2, 1, 16, 16, dtype=torch.float64)
    model = tiny_model("swin")
    report = fenchel.audit(model, None, [{"pixel_values": pixels}], directory=tmp_path)
    # Four windows of 4 x 4 patches an image in the first stage; one after the patches are merged.
    assert [record["queries"] for record in report.heads if record["head"] == 1] == [128, 128, 32, 32]
    whole = [example for key, example in report.examples.items() if key.layer == 1]
    assert {example.window for example in whole} <= {1, 2, 3, 4}
    assert all(example.document in (1, 2) and example.picture is None for example in whole)
    single = [fenchel.audit(model, None, [{"pixel_values": one[None]}]) for one in pixels]
    for number, record in enumerate(report.heads):
        mean = sum(one.heads[number]["gap_mean"] for one in single) / 2
        assert record["gap_mean"] == pytest.approx(mean, rel=1e-5)
    sampled = fenchel.audit(model, None, [{"pixel_values": pixels}], queries=2)
    assert (sampled.heads[0]["queries"], sampled.heads[0]["population"]) == (16, 128)
