"""examples/captioning.py: soft, hard and no attention to cells of toy images, and what is refused."""

import io
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image
from sacrebleu.metrics.bleu import BLEU

import captioning
from common import load_run
from tests.examples.measured import check_run, one_by_one, parquet, refuses, trained

SMALL: dict[str, Any] = {"image_size": 16, "width": 32, "depth": 2, "dropout": 0.0, "quiet": True}
KIND = (captioning.Captioning, captioning.CaptionOptions)


def task(**told: Any) -> captioning.Captioning:
    return captioning.Captioning(captioning.CaptionOptions(**SMALL | told))


def test_says_more_than_the_mean_of_all_cells_lets_it(tmp_path, capsys) -> None:
    told = SMALL | {"epochs": 10, "learning_rate": 5e-3, "gate": False}
    found = {
        attention: trained(*KIND, tmp_path / attention, **told, attention=attention)["test"]
        for attention in ("soft", "mean")
    }
    assert found["soft"]["loss"] < found["mean"]["loss"]

    read, model = load_run(*KIND, tmp_path / "soft")
    batch = read.batch(read.splits["test"], training=False)
    with torch.no_grad():
        records = read.records(model, batch)
        scores = model(images=batch["images"], words=batch["words"])
    nats = torch.nn.functional.cross_entropy(scores.mT, batch["labels"], ignore_index=0, reduction="sum")
    pieces = int((batch["labels"] != 0).sum())
    assert found["soft"]["loss"] == pytest.approx(float(nats) / pieces, rel=1e-4)
    images = list({one["image"]: one for one in records}.values())
    sides = [[one["right"][side] for one in images] for side in (0, 1)]
    said = [one["caption"] for one in images]
    assert found["soft"]["bleu"] == pytest.approx(BLEU(lowercase=True).corpus_score(said, sides).score)

    losses = check_run(captioning, tmp_path / "soft", ["cross"])["loss"]
    expected = [one["nats"] / one["pieces"] for one in records]
    assert torch.allclose(losses, torch.tensor(expected).double(), atol=1e-4)

    capsys.readouterr()
    told = captioning.UseOptions(beam=2, heatmap=str(tmp_path / "seen.png"))
    captioning.use(read, cast(captioning.Captioner, model), told)
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert (tmp_path / "seen.png").stat().st_size > 0


@pytest.mark.parametrize("told", [
    {"decoder": "xu"},
    {"decoder": "xu", "attention": "hard"},
    {"attention": "hard", "gradient": "straight_through", "preference": "context"},
    {"attention": "mean"},
    {"coverage": 1.0, "estimator": "exact", "gate": False},
])  # fmt: skip
def test_words_one_after_another_are_words_at_once(told: dict[str, Any]) -> None:
    made = task(**told)
    torch.manual_seed(0)
    model = made.model().double().eval()
    batch = made.batch(made.splits["test"][:3], training=False)
    images, words = batch["images"].double(), batch["words"]
    with torch.no_grad():
        together, found = model(images=images, words=words), one_by_one(model, images, words)
    assert torch.allclose(found, together, atol=1e-6 if "exact" in told.values() else 1e-10)
    loss, count = made.loss(made.model().train(), made.batch(made.splits["train"][:4], training=True))
    loss.backward()
    assert count > 0
    assert bool(loss.isfinite())


def test_reads_a_folder_and_refuses_what_it_cannot(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), (200, 30, 90)).save(file, "PNG")
    images = [{"bytes": file.getvalue(), "path": None}] * 20
    good = parquet(tmp_path / "good", image=images, captions=[["a pink image", "pink"]] * 20)
    made, memory = task(data=good), task(data=good, held_out=0.0)
    assert [len(made.splits[name]) for name in ("train", "validation", "test")] == [32, 4, 4]
    assert len(memory.splits["test"]) == len(memory.splits["train"]) == 40
    empty = parquet(tmp_path / "empty", image=images, captions=[["pink"]] * 19 + [[" "]])
    refuses(task, [({"data": empty}, "row 19"), ({"image_size": 18}, "image_size")])
