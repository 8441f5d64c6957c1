"""examples/fill_mask.py: masked words, next sentences, translations, next words and classes on toy texts."""

import math
import random
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import BertForPreTraining

import data
import fill_mask
import finetune
import passages
from common import load_run
from fenchel.integrations.transformers import load_model
from tests.cli.conftest import saved
from tests.examples.measured import check_run, parquet, trained

SMALL: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "mlp_width": 64, "dropout": 0.0, "quiet": True}
KIND = (fill_mask.FillMask, fill_mask.FillOptions)


def task(**told: Any) -> fill_mask.FillMask:
    return fill_mask.FillMask(fill_mask.FillOptions(**SMALL | told))


def test_finds_words_that_the_most_frequent_one_is_not(tmp_path, capsys) -> None:
    found = trained(*KIND, tmp_path / "run", epochs=3, learning_rate=3e-3, **SMALL)
    assert found["test"]["masked_accuracy"] > found["test"]["unigram_accuracy"] + 0.2

    read, model = load_run(*KIND, tmp_path / "run")
    rows = [read.splits["test"][one] for numbers in read.batches("test", 8, None) for one in numbers]
    batch = read.batch(rows, training=False)
    with torch.no_grad():
        records = read.records(model, batch)
    hits = sum(w == a for one in records for w, a in zip(one["words"], one["answers"], strict=True))
    assert found["test"]["masked_accuracy"] == pytest.approx(hits / sum(len(one["words"]) for one in records))

    losses = check_run(fill_mask, tmp_path / "run", 4 * ["encoder_self"])["loss"]
    expected = [one["loss"] / max(len(one["words"]), 1) for one in records]
    assert torch.allclose(losses, torch.tensor(expected).double(), atol=1e-4)

    capsys.readouterr()
    told = fill_mask.UseOptions(texts=["the [MASK] near the river [MASK] of oka ."])
    fill_mask.use(read, cast(fill_mask.Blanks, model), told)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_is_hidden() -> None:
    made = task(shares="60/10/30", rate=0.4)
    torch.manual_seed(0)
    rows = made.splits["train"]
    batch = made.batch(rows, training=True)
    whole = [[passages.FIRST, *one.first, *one.second, passages.END] for one in rows]
    true = data.padded(whole)
    places, seen = batch["places"], batch["input_ids"]
    assert torch.equal(batch["targets"], true[places])
    assert torch.equal(seen[~places], true[~places])
    assert bool((batch["targets"] > passages.MASK).all())
    words = int((true > passages.MASK).sum())
    chosen = seen[places]
    for share, expected, count in (
        (len(chosen) / words, 0.4, words),
        (float((chosen == passages.MASK).double().mean()), 0.6, len(chosen)),
    ):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / count)


def test_a_causal_model_does_not_see_what_it_says() -> None:
    made = task(objective="causal")
    torch.manual_seed(0)
    model = made.model().double().eval()
    batch = fill_mask.inputs(made.batch(made.splits["train"][:2], training=True))
    changed = batch | {"input_ids": batch["input_ids"].clone(), "places": torch.zeros_like(batch["places"])}
    changed["places"][0, :5] = True
    before = model(**changed)["words"]
    changed["input_ids"][0, 5:9] = 7
    assert torch.allclose(model(**changed)["words"], before, atol=1e-12)


def test_a_uniform_preference_is_bert() -> None:
    made = task(objective="mask_next", preference="uniform")
    torch.manual_seed(0)
    model = made.model().double().eval()
    batch = fill_mask.inputs(made.batch(made.splits["train"][:4], training=False))
    places = batch.pop("places")
    bert = BertForPreTraining(model.config).double().eval()
    bert.load_state_dict({name: one for name, one in model.state_dict().items() if name != "log_preference"})
    bert.set_attn_implementation("eager")
    with torch.no_grad():
        found, expected = model(**batch, places=places), bert(**batch)
    assert torch.allclose(found["words"], expected.prediction_logits[places], atol=1e-10)
    assert torch.allclose(found["classes"], expected.seq_relationship_logits, atol=1e-10)


def test_learns_audits_swaps_and_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)  # noqa: S311
    for split, count in (("train", 240), ("validation", 40), ("test", 60)):
        labels = [draw.randrange(2) for _ in range(count)]
        texts = [" ".join(draw.sample([f"w{1 + one}", "w4", "w5", "w6"][: 2 + one], 2)) for one in labels]
        parquet(tmp_path, split, sentence=texts, label=labels)
    kind, told = (finetune.Finetune, finetune.FinetuneOptions), {"epochs": 4, "learning_rate": 5e-3}
    pretrained = str(saved(tmp_path / "model", "bert"))
    found = trained(*kind, tmp_path / "run", data=str(tmp_path), pretrained=pretrained, **told)
    assert found["test"]["accuracy"] > 0.9
    losses = check_run(finetune, tmp_path / "run", 8 * ["encoder_self"])["loss"]
    assert float(losses.mean()) == pytest.approx(found["test"]["loss"], abs=1e-4)

    task, model = load_run(*kind, tmp_path / "run")
    finetune.use(task, model, finetune.UseOptions(texts=["w1 w4"], save=str(tmp_path / "saved")))
    assert capsys.readouterr().out.splitlines()[-1].startswith("w1 w4: 0 ")
    loaded, tokenizer, _ = load_model(tmp_path / "saved", with_head=True, classifies=True)
    with torch.no_grad():
        logits = loaded(**tokenizer(["w1 w4"], return_tensors="pt")).logits
        assert torch.allclose(
            logits, task.logits(model, task.batch([("w1 w4", 0)], training=False)), atol=1e-5
        )
