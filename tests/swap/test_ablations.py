"""Ablations of heads and layers: against forward hooks written by hand, and what a swap says of them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fenchel.cli import main
from fenchel.errors import InputError, ModelError
from fenchel.io.runs import SilentObserver
from fenchel.run_options import ABLATIONS
from fenchel.swap import SwapReport, run, swap
from fenchel.swap.conditions import Condition, sites_of
from fenchel.swap.findings import interval_of, share_left_in_words
from fenchel.swap.report import render_html, terminal_table
from fenchel.swap.statistics import ranking
from tests.normal import drawn
from tests.pages import page, shown
from tests.swap.small_swaps import SCORED, language_model, small_swap, tokenizer_of
from tests.swap.test_layers import batches, classifier

HEADS, LAYER, HEAD = 4, 2, 3


def text_inputs(family: str) -> dict[str, Tensor]:
    inputs = dict(tokenizer_of(family)(["w1 w2 w3 w4 w5 w6", "w7 w8 w9"], padding=True, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    if family == "t5":
        inputs |= {"decoder_input_ids": inputs["input_ids"][:, :4]}
    return inputs


def visible(family: str, inputs: dict[str, Tensor], queries: int, keys: int) -> Tensor:
    """Which keys each query of the ablated layer may see, (B, 1, m, n)."""
    mask = inputs["attention_mask"].bool()[:, None, None]
    seen = mask.expand(-1, 1, queries, keys)
    return seen & torch.ones(queries, keys, dtype=torch.bool).tril() if family == "gpt2" else seen


@contextmanager
def hooked(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """What goes into the map that joins heads, changed by hand: (B, m, H, d)."""

    def before(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        return (change(given[0].unflatten(-1, (HEADS, -1))).flatten(-2),)

    hook = module.register_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


def parts(family: str, model: Any) -> tuple[nn.Module, nn.Module]:
    """The maps that make the values of the second layer, and that join its heads."""
    if family == "bert":
        layer = model.base_model.encoder.layer[1].attention
        return layer.self.value, layer.output.dense
    if family == "gpt2":
        return model.transformer.h[1].attn.c_attn, model.transformer.h[1].attn.c_proj
    layer = model.encoder.block[1].layer[0].SelfAttention
    return layer.v, layer.o


@pytest.mark.parametrize("head", [None, HEAD])
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
@pytest.mark.parametrize("how", ABLATIONS)
def test_an_ablation_is_what_a_hook_gives(family: str, how: str, head: int | None) -> None:
    model, inputs = language_model(family), text_inputs(family)
    value_map, joins = parts(family, model)
    kept: list[Any] = []
    value_map.register_forward_hook(lambda _module, _given, output: kept.append(output))
    with torch.no_grad():
        own = model(**inputs)[0]
        values = kept[0]
        values = values[..., -values.shape[-1] // 3 :] if family == "gpt2" else values
        values = values.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    heads = [head - 1] if head else list(range(HEADS))
    mean = drawn(HEADS, values.shape[-1], seed=1)

    def change(output: Tensor) -> Tensor:
        seen = visible(family, inputs, output.shape[1], values.shape[2])
        u = seen.double().log()
        if how == "preference" and family == "t5":
            biased = model.encoder.block[0].layer[0].SelfAttention
            u = u + biased.compute_bias(output.shape[1], values.shape[2])
        by_weights = (u.softmax(-1) @ values).transpose(1, 2)
        fixed = {"zero": torch.zeros_like(output), "mean": mean.expand_as(output)}
        other = {"uniform": by_weights, "preference": by_weights, **fixed}[how]
        found = output.clone()
        found[:, :, heads] = other[:, :, heads]
        return found

    with torch.no_grad(), hooked(joins, change):
        expected = model(**inputs)[0]
    name = sites_of(model)[LAYER - 1].name
    with (
        torch.no_grad(),
        Condition(how, layer=LAYER, head=head, name=name).installed(model, None, {LAYER: mean}),
    ):
        found = model(**inputs)[0]
    real = inputs.get("attention_mask") if family in ("bert", "gpt2") else None
    chosen = slice(None) if real is None else real.bool()
    torch.testing.assert_close(found[chosen], expected[chosen], rtol=1e-11, atol=1e-11)
    assert float((found - own)[chosen].abs().max()) > 1e-6
    with torch.no_grad():
        assert torch.equal(model(**inputs)[0], own)


@pytest.mark.parametrize("how", ABLATIONS)
def test_layers_of_our_own_are_ablated_likewise(how: str) -> None:
    model, inputs = classifier(), batches()[0][0]
    layer = model.first
    mean = torch.ones(4, 2, dtype=torch.float64)
    x = inputs["x"]
    with torch.no_grad():
        values = torch.nn.functional.linear(
            x, *(part.chunk(3)[2] for part in (layer.in_proj_weight, layer.in_proj_bias))
        )
        equal = values.mean(1, keepdim=True).expand_as(values).unflatten(-1, (4, -1))
        other = {"zero": torch.zeros_like(equal), "mean": mean.expand_as(equal)}.get(how, equal)
        with Condition(how, layer=1, name="first").installed(model, None, {1: mean}):
            found = model(x)
        x = x + layer.out_proj(other.flatten(-2))
        x = x + model.second(x, x, x, need_weights=False)[0]
        torch.testing.assert_close(found, model.classes(x.mean(1)), rtol=1e-11, atol=1e-11)


@pytest.fixture(scope="module")
def ablated() -> SwapReport:
    both: dict[str, Any] = {
        "per_head": True,
        "per_layer": True,
        "together": [f"L2H{head}" for head in range(1, 5)],
    }
    return small_swap("gpt2", estimators=["none"], ablations=ABLATIONS, **both)


def test_all_heads_of_a_layer_together_are_the_layer(ablated: SwapReport) -> None:
    for how in ABLATIONS:
        together, layer = ablated.condition(how), ablated.condition(how, layer=LAYER)
        assert together["together"] == ["L2H1", "L2H2", "L2H3", "L2H4"]
        assert together["loss"] == pytest.approx(layer["loss"], rel=1e-12)


def test_losses_are_those_under_hooks() -> None:
    model, tokenizer = language_model("gpt2"), tokenizer_of("gpt2")
    texts = ["w1 w2 w3 w4 w5 w6", "w3 w9 w2"]
    report = small_swap("gpt2", texts, estimators=["none"], ablations=["zero", "mean"], per_head=True)
    kept: list[Tensor] = []
    joins = parts("gpt2", model)[1]
    rows = [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts]
    with torch.no_grad(), hooked(joins, lambda output: kept.append(output[0]) or output):
        for ids in rows:
            model(ids)
    mean = torch.cat(kept).mean(0)
    for how, other in (("zero", torch.zeros_like(mean)), ("mean", mean)):

        def change(output: Tensor, other: Tensor = other) -> Tensor:
            output[:, :, HEAD - 1] = other[HEAD - 1]
            return output

        with torch.no_grad(), hooked(joins, change):
            losses = [cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none") for ids in rows]
        record = report.condition(how, layer=LAYER, head=HEAD)
        assert record["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-6)
        assert record["loss_difference"] == pytest.approx(
            record["loss"] - report.condition("model")["loss"], abs=1e-12
        )


def test_heads_are_ranked_by_their_effect(ablated: SwapReport, tmp_path: Path) -> None:
    assert [one["estimator"] for one in ablated.ranking] == list(ABLATIONS)
    for ranked in ablated.ranking:
        assert (ranked["where"], ranked["measure"], len(ranked["order"])) == ("head", "loss", 8)
        effects = [one["effect"] for one in ranked["order"]]
        assert effects == sorted(effects, reverse=True)
        for one in ranked["order"]:
            record = ablated.condition(ranked["estimator"], layer=one["layer"], head=one["head"])
            assert one["effect"] == record["loss_difference"]
            assert one["effect_low"] <= one["effect"] <= one["effect_high"]
    lines = ablated.finding.splitlines()
    assert [line.split(", the loss per token is highest for layer")[0] for line in lines[-9:-5]] == [
        f"With {name} in place of one head"
        for name in ("no output", "mean output", "equal weights", "preference alone")
    ]
    assert ablated.finding.count(", and lowest for layer") == 4
    many = replace(ablated, results=ablated.results | {"units": {"documents": 30}})
    spans = [interval_of(one, "effect") for one in ablated.ranking[0]["order"]]
    rise, fall = (sum(span.direction == sign for span in spans) for sign in (1, -1))
    assert rise + fall > 0
    assert re.search(rf"interval that excludes 0 \({rise} raises? and {fall} lowers? the loss", many.finding)
    ablated.save(tmp_path)
    assert json.loads((tmp_path / "swap.json").read_text())["ranking"] == ablated.ranking
    assert SwapReport.load(tmp_path) == ablated
    assert render_html(ablated).count("<td>Layer 2, head 3</td>") == 4


def test_scores_are_ranked_the_other_way_and_changes_by_size() -> None:
    alone = {"where": "head", "control": False, "estimator": "zero", "layer": 1, "module": "m"}
    records = [
        {**alone, "head": head}
        | {f"score_difference{end}": score for end in ("", "_low", "_high")}
        | {f"hidden_change{end}": change for end in ("", "_low", "_high")}
        for head, score, change in ((1, -0.2, 0.1), (2, -0.5, 0.05))
    ]
    for quality, order in (("score", [2, 1]), (None, [1, 2])):
        assert [one["head"] for one in ranking(records, quality)[0]["order"]] == order
    assert ranking([{**records[0], "where": "model"}], "score") == []


def test_the_time_is_estimated_without_what_comes_before_the_first_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds, told, observer = [0.0], list[Any](), SilentObserver()
    monkeypatch.setattr(observer, "advanced", told.append)

    def slow(owner: Any, name: str, by: float) -> None:
        function = getattr(owner, name)

        def timed(*given: Any) -> Any:
            seconds[0] += by
            return function(*given)

        monkeypatch.setattr(owner, name, timed)

    slow(run, "mean_outputs", 100.0)
    slow(run.SwapRun, "_observe", 1.0)
    monkeypatch.setattr(run, "ProgressClock", partial(run.ProgressClock, now=lambda: seconds[0]))
    small_swap(estimators=("none",), ablations=("mean",), per_head=True, observer=observer)
    expected = next(one.seconds + one.seconds_left for one in told if one.seconds_left is not None)
    assert expected < 1.5 * told[-1].seconds
    tokens = [one.tokens for one in told]
    assert tokens == sorted(tokens)


def saved_classifier(folder: Path) -> Any:
    from transformers import BertForSequenceClassification

    config = language_model("bert").config
    config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    torch.manual_seed(2)
    model = BertForSequenceClassification(config).double().eval()
    model.save_pretrained(folder)
    tokenizer_of("bert").save_pretrained(folder)
    return model


TEXTS = ["w1 w2 w3", "w5 w6", "w9", "w2 w4 w6 w8"]


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], ["bad", "good", "good", "bad"], [False, True, True, False]])
def test_a_classifier_is_measured_by_its_own_head(tmp_path: Path, labels: list[Any]) -> None:
    model = saved_classifier(tmp_path / "model")
    polars.DataFrame({"text": TEXTS, "mood": labels}).write_csv(tmp_path / "texts.csv")
    report = swap(
        str(tmp_path / "model"), None, str(tmp_path / "texts.csv"), label_column="mood", dtype="float64",
        estimators=["none"], ablations=["zero"], per_head=True, bootstrap=100, batch_size=3,
    )  # fmt: skip
    numbers = torch.tensor([0, 1, 1, 0])
    tokenizer = tokenizer_of("bert")
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS])
    record = report.condition("model")
    assert record["loss"] == pytest.approx(float(cross_entropy(logits, numbers)), rel=1e-9)
    assert record["score"] == float((logits.argmax(-1) == numbers).double().mean())
    assert report.results["units"] == {"texts": 4}
    assert report.manifest["measures"] == {"loss": "loss", "score": "accuracy"}
    assert report.ranking[0]["measure"] == "loss"
    assert not any(record["control"] for record in report.conditions)
    assert "One head with no output: all, by the effect on the loss" in shown(terminal_table(report))
    assert all(word not in render_html(report) for word in ("By α", "gainst the control", ">Difference<"))


def test_the_page_removes_heads_of_a_classifier_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = saved_classifier(tmp_path / "MODEL")
    with torch.no_grad():
        model.classifier.weight.mul_(100)
    model.save_pretrained("MODEL")
    labels = [0, 1, 1, 0]
    for name in ("sst", "test"):
        polars.DataFrame({"sentence": TEXTS, "label": labels}).write_parquet(f"{name}.parquet")
    for command in re.findall(r"```console\nfenchel (.*?)```", page("docs/which-heads.md"), re.DOTALL)[:2]:
        assert main([*command.replace("\\", "").split(), "--device", "cpu"]) == 0
    assert "No output in L1H2, L2H3, L2H4 together changes the loss from" in capsys.readouterr().out
    found = SwapReport.load("together").condition("zero")
    with torch.no_grad():
        for layer, removed in zip(model.bert.encoder.layer, ([1], [2, 3]), strict=True):
            layer.attention.output.dense.weight.unflatten(1, (HEADS, -1))[:, removed] = 0
        inputs = tokenizer_of("bert")(TEXTS, padding=True, return_tensors="pt")
        loss = float(model(**inputs, labels=torch.tensor(labels)).loss)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert abs(found["loss_difference"]) > 1e-4


def test_what_cannot_be_ablated_or_labelled_is_said(tmp_path: Path) -> None:
    table, model = tmp_path / "texts.jsonl", tmp_path / "model"
    table.write_text('{"text": "w1", "mood": "odd", "n": 1.5}\n')
    saved_classifier(model)
    gpt2 = partial(small_swap, "gpt2")
    labelled = partial(swap, str(model), None, str(table), alphas=[0.5], bootstrap=100)
    both = {"label_column": "mood", "target_column": "n"}
    cases: list[tuple[Any, dict[str, Any], Any, str]] = [
        (gpt2, {"ablations": ["zero"]}, InputError, "were given, but none is swapped alone. Add"),
        (gpt2, {"together": ["L1H1"]}, InputError, "there is no ablation to replace them by"),
        (
            gpt2,
            {"together": ["L1H5"], "ablations": ["zero"]},
            InputError,
            "names L1H5, .* the last one is L2H4",
        ),
        (gpt2, {"ablations": ["one"]}, InputError, "ablations names 'one'; expected some of zero, mean"),
        (gpt2, {"estimators": ["none", "exact"]}, InputError, "expected none alone"),
        (gpt2, {"texts": str(table), "label_column": "mood"}, ModelError, "is not a classifier of texts"),
        (labelled, {"label_column": "mood"}, InputError, "document 1 has the label 'odd', which is not"),
        (labelled, {"label_column": "n"}, InputError, "column 'n' is of type float"),
        (labelled, both, InputError, "a target column and a label column were given"),
        (labelled, {"pairs": SCORED, "label_column": "mood"}, InputError, "names the classes of texts, and"),
    ]
    for swapped, options, error, message in cases:
        with pytest.raises(error, match=message):
            swapped(**options)


def test_what_is_left_follows_the_interval() -> None:
    for low, high, said in (
        (0.29, 0.31, "reproduces that part"),
        (0.22, 7.4, "undetermined"),
        (1.2, 10.9, "no α of the control is nearer"),
    ):
        record = {"measure": "hidden_change", "share_left_low": low, "share_left_high": high}
        assert said in share_left_in_words(record, {"units": {"texts": 10}})
        assert share_left_in_words(record, {"units": {"texts": 9}}) == "too few texts for a conclusion"
