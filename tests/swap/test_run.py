"""A swap of whole models: what must not change does not, what must does, and an interrupted one goes on."""

import json
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from fenchel.auditing.inputs import load_run
from fenchel.bootstrap import spearman
from fenchel.cli import main
from fenchel.errors import ConvergenceError, InputError, ModelError
from fenchel.integrations.transformers import load_model, use_backend
from fenchel.io.batches import open_images
from fenchel.nn import use_estimator
from fenchel.swap import SwapReport, swap
from fenchel.swap.conditions import Condition
from fenchel.swap.findings import finding, wording
from fenchel.swap.observation import mean_pooled
from fenchel.swap.report import terminal_table
from fenchel.swap.run import SwapState
from tests.auditing.small_audits import Interrupting, files_of, some_texts
from tests.loaders import LAYERS, TRANSFORMERS, written
from tests.pages import assert_unabridged
from tests.swap.small_swaps import FAMILIES, SCORED, language_model, small_swap, tokenizer_of
from tests.swap.test_layers import LOSS, hits, small
from tests.vision_models import image_folder, saved_vision_model


@pytest.mark.parametrize("family", ["gpt2", "t5", "marian"])
def test_the_control_at_one_is_the_model_and_the_others_are_not(family: str):
    report = small_swap(family, alphas=(0.7, 1.0), estimators=["exact"])
    model, same = report.condition("model"), report.condition("first_order", 1.0)
    assert same["loss"] == pytest.approx(model["loss"], abs=1e-9)
    assert same["hidden_change"] < 1e-9
    for other in (report.condition("first_order", 0.7), report.condition("exact")):
        assert abs(other["loss_difference"]) > 1e-7
        assert other["hidden_change"] > 1e-5
    assert report.manifest["task"] == FAMILIES[family]
    assert report.results["units"]["windows"] > 7


def test_every_layer_and_head_is_a_condition_and_changes_nothing_upstream(tmp_path: Path):
    found = small_swap("bert", per_layer=True, per_head=True, directory=tmp_path)
    where = [record["where"] for record in found.conditions]
    # The model, three controls and two estimators; two layers with two controls; eight heads with two.
    assert {name: where.count(name) for name in set(where)} == {"model": 6, "layer": 2 * 4, "head": 8 * 4}
    assert len({(r["estimator"], r["alpha"], r["layer"], r["head"]) for r in found.conditions}) == len(where)
    one, other = found.condition("exact", layer=1, head=1), found.condition("exact", layer=2, head=3)
    assert one["hidden_change"] != other["hidden_change"]
    assert 0 < one["hidden_change"] < found.condition("exact")["hidden_change"]
    measured = SwapState.read(tmp_path).measured()["hidden"].mean(0)
    for record, hidden in zip(found.conditions, measured, strict=True):
        if record["where"] == "layer":
            assert float(hidden[: record["layer"] - 1].sum()) == pytest.approx(0.0, abs=1e-9)
            assert float(hidden[record["layer"] - 1]) > 1e-4
    assert json.loads((tmp_path / "swap.json").read_text())["schema"] == 3
    assert SwapReport.load(tmp_path) == found
    assert len((tmp_path / "swap.csv").read_text().splitlines()) == 1 + len(found.conditions)
    assert_unabridged(terminal_table(found))


def test_pairs_with_scores_are_compared_with_them():
    report = small_swap("t5", None, pairs=SCORED)
    assert (report.manifest["model_class"], report.results["quality"]) == ("T5Stack", "score_correlation")
    assert report.results["units"] == {"sentences": 24, "pairs": 12}
    assert [c["estimator"] for c in report.results["against_control"]] == ["second_order", "exact"]
    assert small_swap("t5", some_texts(), pairs=SCORED).results["units"]["sentences"] > 24


def test_an_encoder_without_a_head_embeds_and_is_ranked_by_its_embeddings_or_scores():
    options: dict[str, Any] = {"model": language_model("bert").base_model}
    report = small_swap("bert", **options)
    assert report.manifest["task"] == "embedding"
    assert report.results["quality"] is None
    assert report.condition("model")["ranking_agreement"] == pytest.approx(1.0)
    assert report.condition("exact")["embedding_change"] > 0
    assert report.condition("exact")["ranking_agreement"] < 1
    assert "ranking of similarities" in report.finding
    options |= {"estimators": ["none"], "ablations": ["zero"], "per_layer": True}
    for more, measure in (({}, "embedding_change"), ({"pairs": SCORED}, "score_correlation")):
        ranked = small_swap("bert", **options, **more).ranking[0]
        assert (ranked["measure"], ranked["where"]) == (measure, "layer")


def test_the_demo_encoder_is_scored_by_the_means_of_its_tokens():
    sentences = [
        "A man plays a guitar.",
        "Someone makes music.",
        "It rains.",
        "Water falls.",
        "A dog sleeps.",
    ]
    pairs = [(a, b, float(i)) for i, (a, b) in enumerate(pairwise(sentences))]
    report = swap("demo", pairs=pairs, alphas=(0.8, 1.0), bootstrap=100)
    model, tokenizer, _ = load_model("demo")
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        embeddings = mean_pooled(model(**inputs).last_hidden_state, inputs["attention_mask"])
    similarities = (embeddings[:-1] * embeddings[1:]).sum(-1)
    expected = float(spearman(similarities, torch.arange(4.0)))
    assert report.condition("model")["score_correlation"] == pytest.approx(expected)
    assert report.condition("first_order", 1.0)["embedding_change"] < 1e-9


@pytest.mark.parametrize(
    ("swapped", "stops", "options"),
    [
        (partial(small_swap, "bert"), 8, {"estimators": ["exact"]}),
        (partial(small_swap, "bert"), 12, {"estimators": ["exact"], "pairs": SCORED, "batch_size": 5}),
        (partial(small_swap, "gpt2"), 12, {"estimators": ["none"], "ablations": ["mean"], "per_layer": True}),
        (small, 8, {"loss": LOSS, "score": hits}),
    ],
    ids=["language", "sentences", "means", "own layers"],
)
def test_a_swap_that_was_stopped_goes_on_to_the_same_numbers(
    tmp_path: Path, swapped: Any, stops: int, options: dict[str, Any]
):
    options, part = {**options, "checkpoint_seconds": 0.0}, tmp_path / "part"
    whole = swapped(**options, directory=tmp_path / "whole")
    # One call a batch and record: the second batch is under way.
    with pytest.raises(KeyboardInterrupt):
        swapped(**options, directory=part, observer=Interrupting(stops, KeyboardInterrupt()))
    state = SwapState.read(part)
    assert not state.finished
    assert len(state.measured()["hidden"]) > 0
    assert not (part / "swap.json").exists()
    with pytest.raises(InputError, match=r"interrupted after .* Continue it with --resume"):
        swapped(**options, directory=part)
    with pytest.raises(InputError, match="another swap than the one asked for; they differ in seed: 0"):
        swapped(**options, directory=part, resume=True, seed=5)
    assert swapped(**options, directory=part, resume=True) == whole
    assert files_of(part) == files_of(tmp_path / "whole")
    nothing_left = Interrupting(1, AssertionError("nothing is left to do"))
    assert swapped(**options, directory=part, resume=True, observer=nothing_left) == whole


def test_a_solve_that_does_not_converge_says_what_to_do():
    with pytest.raises(ConvergenceError, match=r"swapping in exact: .*Raise --tol"):
        small_swap("gpt2", tol=1e-30)


def test_a_model_that_first_order_does_not_reproduce_is_refused(monkeypatch: pytest.MonkeyPatch):
    def softer(self: Condition, model: Any, *_: Any) -> Any:
        return use_backend(model, "first_order", alpha=0.5)

    honest = Condition.installed
    monkeypatch.setattr(
        Condition, "installed", lambda self, *args: (softer if self.estimator else honest)(self, *args)
    )
    with pytest.raises(ModelError, match=r"under first order at alpha 1 differs from itself"):
        small_swap("gpt2")


def test_options_that_cannot_be(tmp_path: Path):
    for options, message in (
        ({"estimators": []}, "estimators is"),
        ({"estimators": ["first_order"]}, "contains first_order, which is the model itself"),
        ({"alphas": [1.0]}, "expected at least one other than 1"),
        ({"max_pairs": 5}, "max pairs is 5, but no scored pairs were given"),
        ({"layers": [1]}, "layers \\[1\\] were given, but none is swapped alone"),
        ({"layers": [9], "per_layer": True}, "layers \\[9\\] do not exist: this model has 2"),
        ({"heads": [9], "per_head": True}, "heads \\[9\\] do not exist: these layers have heads 1 to 4"),
        ({"resume": True}, "without a directory"),
        ({"texts": ["w1"]}, "has no token to predict: its windows are too short"),
        ({"texts": None}, "there is nothing to read"),
        ({"texts": ["w1 w2"], "tokenizer": None}, "has no tokenizer"),
    ):
        given: dict[str, Any] = {"tokenizer": tokenizer_of("gpt2"), "texts": some_texts()}
        if "resume" not in options:
            given["directory"] = tmp_path / "out"
        given |= options
        with pytest.raises(InputError, match=message):
            swap(language_model("gpt2"), **given)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("documents", "difference", "half", "compared", "said"),
    [
        (9, -0.3, 0.2, 0.0, "over 9 documents): too few documents for a conclusion"),
        (10, -0.1, 0.2, 0.0, "not distinguishable from no change"),
        (10, -0.3, 0.2, 0.0, "an improvement"),
        (10, 0.3, 0.2, 0.0, "for the worse"),
        (10, -0.3, 0.2, -0.1, "no evidence of more than smoothing"),
        (10, -0.5, 0.2, -0.4, "better than the best control"),
        (10, -0.1, 0.2, 0.4, "the control is better"),
    ],
)
def test_the_finding_says_no_more_than_the_intervals(
    masked: SwapReport, documents: int, difference: float, half: float, compared: float, said: str
):
    results = deepcopy(masked.results)
    assert set(results["units"]) == {"windows", "documents"}
    results["units"]["documents"] = documents
    for records, name, value in (
        (results["conditions"], "loss_difference", difference),
        (results["against_control"], "difference", compared),
    ):
        record = next(one for one in records if one["estimator"] == "exact")
        record |= {name: value, f"{name}_low": value - half, f"{name}_high": value + half}
    found = finding(results, wording(masked.manifest))
    assert said in found
    assert ("an improvement" in found) == (documents == 10 and difference + half < 0)


FEW: dict[str, Any] = {"alphas": (0.5, 1.0), "bootstrap": 100}


@pytest.mark.parametrize(
    ("code", "estimator"), [(LAYERS, "exact"), (TRANSFORMERS, "fenchel_exact"), (TRANSFORMERS, "sdpa")]
)
def test_a_run_is_swapped_through_its_loader(tmp_path: Path, code: str, estimator: str) -> None:
    loader, run = written(tmp_path, code, estimator)
    report = swap(str(run), loader=loader, per_layer=True, directory=tmp_path / "swap", **FEW)
    assert report.manifest["loader"] == str(loader)
    assert report.manifest.get("trained_with") == (None if estimator == "sdpa" else "exact")
    assert ("was trained with the exact estimator" in report.finding) == (estimator != "sdpa")
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
        record = report.condition("model" if name == "first_order" else name)
        assert record["loss"] == pytest.approx(float(loss.double().mean()), rel=1e-4)
        assert record["score"] == pytest.approx(float(score.mean()))
    assert report.condition("exact")["hidden_change"] > 1e-4


def test_what_is_not_given_beside_a_loader(tmp_path: Path) -> None:
    loader, run = written(tmp_path, LAYERS, "first_order")
    for name in ("texts", "images", "pairs", "loss", "revision", "max_pairs"):
        value: Any = {"max_pairs": 5, "loss": len}.get(name, "x")
        with pytest.raises(InputError, match=f"{name.replace('_', ' ')} was given with a loader"):
            swap(str(run), loader=loader, **{name: value})
    found = load_run(loader, run)
    measured = [dict(batch) for batch in found.batches]
    assert set(swap(found.model, None, measured, **FEW).manifest["measures"]) == {"loss", "score"}
    del measured[1]["loss"]
    with pytest.raises(InputError, match="batch 2 has no loss, but the first has one"):
        swap(found.model, None, measured, **FEW)
    with pytest.raises(InputError, match="stride applies to texts only, but a loader was given"):
        swap(str(run), loader=loader, stride=5)
    report = swap(str(run), loader=loader, max_tokens=10, **FEW)
    assert report.results["units"] == {"examples": 4}


CLASSES = {"cat": 0, "dog": 1, "owl": 2}


def labelled_images(folder: Path) -> tuple[Path, Path]:
    """Images in folders named by class, and the same in a Parquet file."""
    for name in ("owl", "cat"):
        image_folder(folder / "images" / name, 2 + (name == "cat"))
    rows = [
        {"image": {"bytes": path.read_bytes(), "path": ""}, "kind": CLASSES[path.parent.name]}
        for path in open_images(folder / "images").paths
    ]
    polars.DataFrame(rows).write_parquet(folder / "images.parquet")
    return folder / "images", folder / "images.parquet"


def test_a_classifier_of_images_is_measured_by_its_own_head(tmp_path: Path) -> None:
    names = {"label2id": CLASSES, "id2label": {number: name for name, number in CLASSES.items()}}
    model = saved_vision_model(tmp_path / "model", ViTForImageClassification, **names)
    folder, table = labelled_images(tmp_path)
    given: dict[str, Any] = {**FEW, "per_head": True, "estimators": ["none"], "ablations": ["zero"]}
    report = swap(str(tmp_path / "model"), images=folder, batch_size=2, **given)
    images, processor = open_images(folder), ViTImageProcessorPil.from_pretrained(tmp_path / "model")
    assert images.labels == ("cat", "cat", "cat", "owl", "owl")
    labels = torch.tensor([0, 0, 0, 2, 2])
    pixels = processor(images=[images.read(number) for number in range(5)], return_tensors="pt")
    with torch.no_grad():
        logits = model(**pixels).logits.double()
    record = report.condition("model")
    assert record["loss"] == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-6)
    assert record["score"] == float((logits.argmax(-1) == labels).double().mean())
    assert report.manifest["measures"] == {"loss": "loss", "score": "accuracy"}
    assert report.ranking[0]["measure"] == "loss"
    same = swap(str(tmp_path / "model"), images=table, label_column="kind", batch_size=2, **given)
    assert same.conditions == report.conditions
    command = f"swap {tmp_path / 'model'} --images {table} --label-column kind --out {tmp_path / 'out'} --device cpu"
    assert main([*command.split(), *["--batch-size", "2", "--alphas", "0.8", "--bootstrap", "100"]]) == 0
    assert SwapReport.load(tmp_path / "out").condition("model") == record
    unlabelled = swap(str(tmp_path / "model"), images=table, **FEW)
    assert unlabelled.manifest["measures"] == {}
    two, bare = (str(tmp_path / name) for name in ("two", "bare"))
    saved_vision_model(tmp_path / "two", ViTForImageClassification, num_labels=2)
    saved_vision_model(tmp_path / "bare")
    for other, tokenizer in ((two, None), (bare, None), (model.vit, processor)):
        ignored = swap(other, tokenizer, images=folder, **FEW)
        assert ignored.finding.endswith("no labels: no folder has the name of a class of the model.")
        assert (ignored.manifest["measures"], ignored.results["units"]) == ({}, {"images": 5})
    (folder / "cat").rename(folder / "1")
    kind = {"label_column": "kind"}
    wrong: list[tuple[Any, Any, Path, dict[str, Any], Any, str]] = [
        (str(tmp_path / "model"), None, folder, kind, InputError, "'kind' was given, but .* is not a table"),
        (model.vit, processor, table, kind, ModelError, "ViTModel is not a classifier of images"),
        (two, None, folder, {}, InputError, r"owl/0\.png has the label 'owl', .*all images in one folder\.$"),
        (
            bare,
            None,
            table,
            kind,
            ModelError,
            "saved as ViTModel, which is not a classifier of texts or images",
        ),
    ]
    for other, tokenizer, read, options, error, said in wrong:
        with pytest.raises(error, match=said):
            swap(other, tokenizer, images=read, **options, **FEW)
