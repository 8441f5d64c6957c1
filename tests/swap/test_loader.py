"""Swaps of runs through a loader: loss and score of each example, from the model's first-order form."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.errors import InputError
from fenchel.integrations.transformers import use_backend
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
