"""Reading: what is computed, what is learned, what is printed and what is refused."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from datasets import config

import common
import reading
from tests.examples.measured import check_run, few_toys, parquet, refuses, trained

KIND = (reading.Reading, reading.ReadingOptions)
SMALL = {"learning_rate": 8e-3, "dropout": 0.1}
TEXTS = {**SMALL, "epochs": 2, "width": 32}
PAIRS = {**SMALL, "data": "toy-pairs", "epochs": 4, "schedule": "linear", "width": 48, "heads": 1}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Gives the folder and the metrics of a training, which is run once."""
    known: dict[str, Any] = {}

    def run(**options: Any) -> tuple[Path, dict[str, Any]]:
        name = json.dumps(options)
        if name not in known:
            folder = tmp_path_factory.mktemp("runs") / "run"
            known[name] = folder, trained(*KIND, folder, **options)
        return known[name]

    return run


def loaded(folder: Path) -> tuple[reading.Reading, torch.nn.Module]:
    return common.load_run(*KIND, folder)


@pytest.mark.parametrize("options", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_attention_learns_what_the_mean_of_the_words_does_not(learned, options):
    looking, without = (learned(**options, attention=kind)[1]["test"] for kind in ("soft", "mean"))
    assert looking["accuracy"] > without["accuracy"] + (0.02 if "data" in options else 0.3)
    if "data" in options:
        assert looking["squared_error"] < without["squared_error"] / 2


def model_of(**options: Any) -> tuple[reading.Reading, Any]:
    """A task with few examples, and a model with random weights in evaluation mode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "toy", few_toys)
        task = reading.Reading(reading.ReadingOptions(width=16, heads=2, **options))
    torch.manual_seed(3)
    return task, task.model().eval()


@pytest.mark.parametrize("attention", [*reading.CLOSENESS, "mean", "bag"])
@pytest.mark.parametrize("data", ["toy", "toy-pairs"])
def test_padding_changes_nothing(data, attention):
    encoder = "words" if attention == "bag" else "lstm"
    preference = "context" if attention in reading.CLOSENESS else "uniform"
    task, model = model_of(data=data, attention=attention, encoder=encoder, preference=preference)
    texts = [["left leeft"], ["stop stoop stoop left"]], [["kam", "kam fem"], ["bam bem bim", "unkam"]]
    examples = [task.with_words({"texts": one}) for one in texts[data == "toy-pairs"]]
    together = model(**reading.inputs(task.batch(examples, training=False)))
    alone = [model(**reading.inputs(task.batch([one], training=False))) for one in examples]
    for name, logits in together.items():
        torch.testing.assert_close(logits, torch.cat([one[name] for one in alone]))


@pytest.mark.parametrize("options", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_load_gives_what_an_audit_reads(learned, options):
    folder, result = learned(**options, attention="soft")
    found = check_run(reading, folder, ["encoder_self"] if options is PAIRS else 4 * ["cross"])
    assert float(found["score"].mean()) == pytest.approx(result["test"]["accuracy"])
    if "pearson" not in result["test"]:
        assert float(found["loss"].mean()) == pytest.approx(result["test"]["cross_entropy"], rel=1e-4)
    _, batches = reading.load(str(folder))
    texts = [" ".join(row).replace(" [PAD]", "") for batch in batches for row in batch["tokens"]]
    assert texts == [" ".join(one["texts"]) for one in loaded(folder)[0].splits["test"]]


def test_use_says_a_class_and_draws_a_pair(learned, monkeypatch, capsys, tmp_path):
    drawn: list[Any] = []
    monkeypatch.setattr(reading, "heatmap", lambda *given: drawn.append(given))
    task, model = loaded(learned(**PAIRS, attention="soft")[0])
    file = str(tmp_path / "pair.png")
    capsys.readouterr()
    reading.use(task, model, reading.UseOptions(["Kam bem!", "kam unknown"], heatmap=file))
    said = json.loads(capsys.readouterr().out)
    assert said["said"] == max(said["chances"], key=said["chances"].get)
    assert 1 <= said["said_degree"] <= 5
    ((weights, *labels),) = drawn
    assert labels == [["kam", "bem", "[UNK]"], ["kam", "[UNK]"], file]
    torch.testing.assert_close(weights.sum(-1), torch.ones(3))


ROWS = ["a b c", "d e f", "a d", "b e"] * 5


def test_columns_of_a_folder_are_found_named_and_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    labels = datasets.ClassLabel(names=["no", "yes"])
    rows = {"sentence_A": ROWS, "sentence_B": ROWS, "label": [0, 1, -1, 1] * 5, "near": [1.0, 4.5] * 10}
    data = str(tmp_path)
    for split in ("train", "test"):
        datasets.Dataset.from_dict(rows).cast_column("label", labels).to_parquet(
            tmp_path / f"{split}.parquet"
        )
    read = lambda **told: reading.Reading(reading.ReadingOptions(data=data, **told))  # noqa: E731
    task = read(degree="near")
    assert (task.texts, task.classes) == (("sentence_A", "sentence_B"), ["no", "yes"])
    assert {one["degree"] for one in task.splits["test"]} == {1.0, 4.5}
    assert len(task.splits["test"]) == 15  # -1 stands for no label
    named = {"text": "sentence_B", "text_pair": "sentence_A"}
    assert read(**named).texts == ("sentence_B", "sentence_A")
    refuses(read, [({"text": "words"}, "has no column words; it has sentence_A, sentence_B, label, near")])
    parquet(tmp_path, text=ROWS, label=["x"] * 20)
    parquet(tmp_path, "test", text=[*ROWS[1:], " "], label=["x"] * 20)
    refuses(read, [({}, "row 19: a text is empty")])
    parquet(tmp_path, "test", text=ROWS, label=["z"] * 20)
    refuses(read, [({}, "label is 'z', no class of the training data")])
