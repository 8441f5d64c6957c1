"""The translator learns a toy language by attention, and says of itself what can be computed anew."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import nn

import common
import translation
from decoding import BEGIN, END
from tests.examples.measured import check_run, one_by_one, parquet, refuses, trained
from translation import Translation, TranslationOptions, UseOptions

SHORT: dict[str, Any] = {"epochs": 2, "preference": "aligned"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    trained(Translation, TranslationOptions, folder, **SHORT)
    return folder


def metrics_of(run: Path) -> dict[str, float]:
    return json.loads((run / common.METRICS).read_text())["test"]


def test_attention_beats_one_context_for_all_words(run: Path, tmp_path: Path) -> None:
    control = trained(Translation, TranslationOptions, tmp_path, **SHORT, context="mean")["test"]
    found = metrics_of(run)
    assert found["bleu"] > control["bleu"] + 20
    assert found["loss"] < control["loss"] - 0.5
    records = [json.loads(line) for line in (run / "test.jsonl").read_text().splitlines()]
    said = [one["translation"] for one in records]
    expected = BLEU().corpus_score(said, [[one["reference"] for one in records]])
    assert found["bleu"] == pytest.approx(expected.score, rel=1e-6)


def test_batches_for_audits_have_the_loss_of_the_test(run: Path) -> None:
    losses = check_run(translation, run, ["cross"], space="key")["loss"]
    _, batches = translation.load(run)
    counts = torch.cat([batch["counted_decoder"].sum(1) for batch in batches])
    assert float((losses * counts).sum() / counts.sum()) == pytest.approx(metrics_of(run)["loss"], rel=1e-5)


def test_use_translates_and_scores_the_test(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, model = common.load_run(Translation, TranslationOptions, run)
    translation.use(task, model, UseOptions())
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["source"] for one in lines] == [pair.source for pair in task.splits["test"]]
    assert last["bleu"] == pytest.approx(metrics_of(run)["bleu"], rel=1e-6)
    assert "tok:13a" in last["signature"]
    sentence = lines[0]["source"]
    translation.use(task, model, UseOptions(sentences=[sentence], beam=4, length_power=0.0))
    (beam,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert beam["log_probability"] >= lines[0]["log_probability"] - 1e-4


NUMBERS = torch.tensor([[7, 12, 9, END], [8, END, 0, 0]]), torch.tensor([[BEGIN, 11, 6], [BEGIN, 9, 0]])


def small(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    told = TranslationOptions(width=16, **options)
    if told.model == "transformer":
        return translation.TransformerTranslator(told, (40, 50)).eval()
    return translation.LSTMTranslator(told, (40, 50), 0.9).eval()


KINDS = [
    {"query": "paper"},
    {"query": "paper", "score": "additive", "preference": "location"},
    {"query": "bahdanau", "score": "additive", "preference": "context", "depth": 2},
    {"query": "bahdanau", "context": "mean"},
    {"query": "luong", "score": "dot", "preference": "predicted", "depth": 2, "head": "add"},
    {"query": "luong", "score": "general", "preference": "relative", "order": 1.5},
    {"context": "last"},
    {"model": "transformer", "depth": 2},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_words_said_one_by_one_have_the_scores_of_training(kind: dict[str, Any]) -> None:
    model: Any = small(**kind)
    source, target = NUMBERS
    with torch.no_grad():
        expected, found = model(source=source, target=target), one_by_one(model, source, target)
        alone = model(source=source[1:, :2], target=target[1:, :2])
    real = target != 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(alone[0], expected[1, :2], atol=1e-5, rtol=1e-4)


def test_pairs_come_from_two_columns_of_a_folder(tmp_path: Path) -> None:
    def task(**told: Any) -> Translation:
        return Translation(TranslationOptions(data=data, source="fr", out=str(tmp_path / "run"), **told))

    data = parquet(tmp_path, fr=["un chien court"] * 20, it=["un cane corre"] * 20, other=[" "] * 20)
    made = task(target="it")
    assert [len(made.splits[name]) for name in ("train", "validation", "test")] == [16, 2, 2]
    assert made.splits["test"][0][:2] == ("un chien court", "un cane corre")
    assert made.tokenizers[1].decode(made.splits["test"][0].labels) == "un cane corre"
    refuses(
        task,
        [
            ({"target": "nl"}, "no column nl; it has fr, it, other"),
            ({"target": "other"}, r"row \d.*not empty"),
            ({"target": "it", "longest": 1}, r"no pair has at most 1 pieces.*--longest"),
        ],
    )
