"""examples/finetune.py: a tiny BERT learns which of two words a text has."""

import random
from pathlib import Path

import datasets
import pytest
import torch

import finetune
from common import Training, load_run
from fenchel.integrations.transformers import load_model
from tests.cli.conftest import saved
from tests.examples.measured import audited, check_swap


def test_learns_audits_swaps_and_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)  # noqa: S311
    for split, count in (("train", 240), ("validation", 40), ("test", 60)):
        labels = [draw.randrange(2) for _ in range(count)]
        texts = [" ".join(draw.sample([f"w{1 + one}", "w4", "w5", "w6"][: 2 + one], 2)) for one in labels]
        rows = datasets.Dataset.from_dict({"sentence": texts, "label": labels})
        rows.to_parquet(str(tmp_path / f"{split}.parquet"))
    pretrained = saved(tmp_path / "model", "bert")
    options = finetune.FinetuneOptions(
        data=str(tmp_path),
        pretrained=str(pretrained),
        out=str(tmp_path / "run"),
        epochs=4,
        learning_rate=5e-3,
        quiet=True,
    )
    found = Training(finetune.Finetune, options).run()
    assert found["test"]["accuracy"] > 0.9
    assert len(audited(finetune, tmp_path / "run")) == 8
    check_swap(finetune, tmp_path / "run", found["test"]["loss"])

    task, model = load_run(finetune.Finetune, finetune.FinetuneOptions, tmp_path / "run")
    finetune.use(task, model, finetune.UseOptions(texts=["w1 w4"], save=str(tmp_path / "saved")))
    assert capsys.readouterr().out.splitlines()[-1].startswith("w1 w4: 0 ")
    loaded, tokenizer, _ = load_model(tmp_path / "saved", with_head=True, classifies=True)
    with torch.no_grad():
        logits = loaded(**tokenizer(["w1 w4"], return_tensors="pt")).logits
        assert torch.allclose(
            logits, task.logits(model, task.batch([("w1 w4", 0)], training=False)), atol=1e-5
        )
