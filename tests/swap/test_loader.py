"""Swaps of runs through a loader: loss and score of each example, from the model's first-order form."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch.nn.functional import cross_entropy
from transformers import ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from fenchel.errors import InputError, ModelError
from fenchel.integrations.transformers import use_backend
from fenchel.io.images import open_images
from fenchel.loading import load_run
from fenchel.nn import use_estimator
from fenchel.swap import swap
from tests.loaders import LAYERS, TRANSFORMERS, written
from tests.vision_models import image_folder, saved_vision_model

FEW: dict[str, Any] = {"alphas": (0.5, 1.0), "bootstrap": 100}


@pytest.mark.parametrize(
    ("code", "estimator"), [(LAYERS, "exact"), (TRANSFORMERS, "fenchel_exact"), (TRANSFORMERS, "sdpa")]
)
def test_a_run_is_swapped_through_its_loader(tmp_path: Path, code: str, estimator: str) -> None:
    loader, run = written(tmp_path, code, estimator)
    report = swap(str(run), loader=loader, per_layer=True, directory=tmp_path / "swap", **FEW)
    assert report.manifest["loader"] == str(loader)
    assert report.manifest.get("trained_with") == (None if estimator == "sdpa" else "exact")
    assert ("was trained with its exact estimate" in report.finding) == (estimator != "sdpa")
    assert report.results["units"] == {"examples": 12}
    found = load_run(loader, run)
    model = found.model.eval()
    switched = use_estimator if code == LAYERS else use_backend
    for name in ("first_order", "exact"):
        with torch.no_grad(), switched(model, name):
            outputs = [(batch, model(**batch["inputs"])) for batch in found.batches]
        loss, score = (
            torch.cat([batch[measure](output) for batch, output in outputs]) for measure in ("loss", "score")
        )
        arm = report.arm("model" if name == "first_order" else name)
        assert arm["loss"] == pytest.approx(float(loss.double().mean()), rel=1e-4)
        assert arm["score"] == pytest.approx(float(score.mean()))
    assert report.arm("exact")["hidden_change"] > 1e-4
    # A single layer changes its own output, and none before it.
    assert {record["stack"] for record in report.layers} == {"attention", "output"}


def test_batches_with_measures_of_their_own_are_swapped_without_a_loader(tmp_path: Path) -> None:
    found = load_run(*written(tmp_path, TRANSFORMERS, "sdpa"))
    batches = [dict(batch) for batch in found.batches]
    report = swap(found.model, None, batches, **FEW)
    assert set(report.manifest["measures"]) == {"loss", "score"}
    del batches[1]["loss"]
    with pytest.raises(InputError, match="batch 2 has no loss and the first has one"):
        swap(found.model, None, batches, **FEW)


def test_a_vision_model_of_transformers_is_swapped_on_images(tmp_path: Path) -> None:
    saved_vision_model(tmp_path / "model")
    report = swap(str(tmp_path / "model"), images=image_folder(tmp_path / "images"), **FEW)
    assert report.results["units"] == {"images": 3}
    assert report.arm("exact")["hidden_change"] > 0


CLASSES = {"cat": 0, "dog": 1, "owl": 2}


def labelled_images(folder: Path) -> tuple[Path, Path]:
    """Images in folders named by class, and the same in a Parquet file."""
    for name in ("owl", "cat"):
        image_folder(folder / "images" / name, 2 + (name == "cat"))
    rows = [
        {"image": {"bytes": path.read_bytes(), "path": ""}, "kind": CLASSES[path.parent.name]}
        for path in open_images(folder / "images").paths
    ]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "images.parquet")
    return folder / "images", folder / "images.parquet"


def test_a_classifier_of_images_is_measured_by_its_own_head(tmp_path: Path) -> None:
    names = {"label2id": CLASSES, "id2label": {number: name for name, number in CLASSES.items()}}
    model = saved_vision_model(tmp_path / "model", ViTForImageClassification, **names)
    folder, table = labelled_images(tmp_path)
    given: dict[str, Any] = {**FEW, "per_head": True, "estimators": ["none"], "ablations": ["zero"]}
    report = swap(str(tmp_path / "model"), images=folder, batch_size=2, **given)
    images = open_images(folder)
    assert images.labels == ("cat", "cat", "cat", "owl", "owl")
    labels = torch.tensor([0, 0, 0, 2, 2])
    pixels = ViTImageProcessorPil.from_pretrained(tmp_path / "model")(
        images=[images.read(number) for number in range(5)], return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(**pixels).logits.double()
    record = report.arm("model")
    assert record["loss"] == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-6)
    assert record["score"] == float((logits.argmax(-1) == labels).double().mean())
    assert report.manifest["measures"] == {"loss": "loss", "score": "accuracy"}
    assert report.ranking[0]["measure"] == "loss"
    same = swap(str(tmp_path / "model"), images=table, label_column="kind", batch_size=2, **given)
    assert same.arms == report.arms
    unlabelled = swap(str(tmp_path / "model"), images=table, **FEW)
    assert unlabelled.manifest["measures"] == {}


def test_labels_of_images_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder, table = labelled_images(tmp_path)
    saved_vision_model(tmp_path / "bare")
    with pytest.raises(ModelError, match="saved as ViTModel, which names no classes of texts or images"):
        swap(str(tmp_path / "bare"), images=folder, **FEW)
    model = saved_vision_model(tmp_path / "model", ViTForImageClassification, num_labels=2)
    for images, column, message in (
        (folder, None, r"image .*cat/0\.png has the label 'cat', which is no class of the model"),
        (table, "kind", r"image .*images\.parquet/row 4 has the label '2', which is no class"),
        (table, "class", "row 1 of .* has no column 'class'"),
        (folder, "kind", "label column 'kind' was named, and .* is no table"),
    ):
        with pytest.raises(InputError, match=message):
            swap(str(tmp_path / "model"), images=images, label_column=column, **FEW)
    processor = ViTImageProcessorPil.from_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="ViTModel names no classes of images"):
        swap(model.vit, processor, images=folder, **FEW)


def test_what_is_not_given_beside_a_loader(tmp_path: Path) -> None:
    loader, run = written(tmp_path, LAYERS, "first_order")
    for name in ("texts", "images", "pairs", "loss", "revision", "max_pairs"):
        value: Any = {"max_pairs": 5, "loss": len}.get(name, "x")
        with pytest.raises(InputError, match=f"{name.replace('_', ' ')} was given beside a loader"):
            swap(str(run), loader=loader, **{name: value})
    with pytest.raises(InputError, match="stride is an option of texts, and what a loader loads were given"):
        swap(str(run), loader=loader, stride=5)
    report = swap(str(run), loader=loader, max_tokens=10, **FEW)
    assert (report.results["units"], report.manifest["max_tokens"]) == ({"examples": 4}, 10)
