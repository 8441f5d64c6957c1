"""examples/vision.py: ViT and OT-ViT on toy images, partner images, and what is refused."""

import io
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

import vision
from common import load_run
from fenchel.errors import CostWarning, ModelError
from tests.examples.measured import audited, check_run, parquet, refuses, trained

pytestmark = pytest.mark.filterwarnings(f"ignore::{CostWarning.__module__}.{CostWarning.__name__}")

SMALL: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "mlp_width": 64, "dropout": 0.0}
KIND = (vision.Vision, vision.VisionOptions)


def task(**told: Any) -> vision.Vision:
    return vision.Vision(vision.VisionOptions(**SMALL | told))


def test_learns_toy_images_that_the_mean_of_their_pixels_does_not_tell_apart(tmp_path: Path) -> None:
    found = trained(*KIND, tmp_path / "run", epochs=3, learning_rate=3e-3, augment=False, **SMALL)
    splits = task().splits
    means, labels = (
        {name: torch.stack([f(one) for one in split]).numpy() for name, split in splits.items()}
        for f in (lambda one: one[0].float().mean((1, 2)), lambda one: one[1])
    )
    control = LogisticRegression().fit(means["train"], labels["train"]).score(means["test"], labels["test"])
    assert found["test"]["accuracy"] > control + 0.3

    read, model = load_run(*KIND, tmp_path / "run")
    read_back = check_run(vision, tmp_path / "run", 2 * ["encoder_self"], layers=[1], baseline="twin")
    assert float(read_back["loss"].mean()) == pytest.approx(found["test"]["loss"], rel=1e-4)
    assert float(read_back["score"].mean()) == pytest.approx(found["test"]["accuracy"])
    with pytest.raises(ModelError, match="--layers 1, or"):  # the last one is optimal transport
        audited(vision, tmp_path / "run")

    vision.use(
        read, cast(vision.VisionTransformer, model), vision.UseOptions(picture=str(tmp_path / "seen.png"))
    )
    assert (tmp_path / "seen.png").stat().st_size > 0


@pytest.mark.parametrize("model", ["vit", "ot-vit"])
def test_templates_of_an_equal_partner_change_nothing_where_preference_is_shared(model: str) -> None:
    torch.manual_seed(0)
    made = task(model=model, extra="shared").model().double().eval()
    image = torch.randn(1, 1, 16, 16, dtype=torch.float64)
    images = torch.cat([image, image])
    with torch.no_grad():
        alone, joined = made(images), made(images, torch.tensor([1, -1]))
    assert torch.allclose(joined[1], alone[1], rtol=0, atol=1e-12)
    if model == "vit":  # each weight is halved, and each template there twice
        assert torch.allclose(joined[0], alone[0], rtol=0, atol=1e-12)


def test_reads_a_folder_and_refuses_what_it_cannot(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.effect_noise((8, 8), 60).save(file, "PNG")
    images, labels = [{"bytes": file.getvalue(), "path": None}] * 40, [0, 1] * 20

    good = parquet(tmp_path / "good", image=images, label=labels)
    one = task(data=good, train_images=20)
    assert [len(one.splits[name]) for name in ("train", "validation", "test")] == [20, 4, 4]
    assert one.splits["train"][0][0].shape == (1, 8, 8)
    cut = [*images[:-1], {"bytes": file.getvalue()[:40], "path": None}]
    damaged = parquet(tmp_path / "truncated", image=cut, label=labels)
    unlabelled = parquet(tmp_path / "unlabelled", image=images, label=[0, 1] * 19 + [0, -1])
    refuses(task, [({"data": damaged}, "row"), ({"data": unlabelled}, "the label -1")])
    refuses(task, [({"batch_size": 63}, "batch_size"), ({"model": "vit", "extra": "zero"}, "--extra")])
