"""An audit counts every query once, says what it did, and refuses what cannot be meant."""

import importlib.util
import itertools
import math
import platform
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.auditing import run
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import Packing, unpacked
from fenchel.auditing.heads import METRICS, counted_in_words
from fenchel.auditing.manifest import KEYS
from fenchel.auditing.report import render_html
from fenchel.auditing.run import audit
from fenchel.auditing.weight_moves import KEY_CLASSES
from fenchel.drawing import duration
from fenchel.errors import FenchelError, InputError, MissingExtraError
from fenchel.io.runs import ProgressClock
from fenchel.run_options import AuditOptions, declared
from tests.auditing.small_audits import (
    PLACE,
    Interrupting,
    assert_close,
    rows_of,
    small_audit,
    small_model,
    some_texts,
)
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import tiny_images, tiny_inputs


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditReport, list[dict[str, Any]]]:
    """An audit of the usual texts, and its single queries."""
    folder = tmp_path_factory.mktemp("kept")
    report = small_audit(directory=folder)
    return report, rows_of(folder)


@pytest.fixture(scope="module")
def plain(kept: tuple[AuditReport, list[dict[str, Any]]]) -> AuditReport:
    return kept[0]


def test_every_token_is_counted_once_in_every_head(kept: tuple[AuditReport, list[dict[str, Any]]]) -> None:
    texts, (report, rows) = some_texts(), kept
    windows = [max(1, math.ceil((len(text.split()) - 10) / 8) + 1) for text in texts]
    expected = sum(len(text.split()) for text in texts) + 2 * sum(windows)
    assert [(record["layer"], record["head"]) for record in report.heads] == [
        (layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)
    ]
    assert {record["queries"] for record in report.heads} == {report.manifest["tokens"]}
    assert report.manifest["tokens"] == expected
    assert report.manifest["documents"] == len(texts)
    assert counted_in_words(report.manifest, report.heads) == f"7 documents, {expected} tokens"
    assert len(rows) == len({tuple(row[name] for name in PLACE) for row in rows}) == 8 * expected


def test_kept_queries_say_where_they_are(tmp_path: Path) -> None:
    small_audit(["w5 w6", "w7"], directory=tmp_path)
    rows = rows_of(tmp_path)
    first = [row for row in rows if (row["layer"], row["head"]) == (1, 1)]
    assert [(row["document"], row["window"], row["position"], row["token"]) for row in first] == [
        (1, 1, 1, 2), (1, 1, 2, 9), (1, 1, 3, 10), (1, 1, 4, 3), (2, 1, 1, 2), (2, 1, 2, 11), (2, 1, 3, 3),
    ]  # fmt: skip
    assert [(row["text"], row["type"], row["class"]) for row in first[:3]] == [
        ("[CLS]", "special", "first"), ("w5", "word", "rest"), ("w6", "word", "rest"),
    ]  # fmt: skip
    for row in rows:
        moved = sum(row[f"leaves_{name}"] for name in KEY_CLASSES)
        assert moved == pytest.approx(row["total_variation"], abs=1e-6)
        assert row["leaves_token"] in {2, 3, 9, 10, 11}
        assert 0 <= row["leaves_weight"] <= row["total_variation"] + 1e-6


def test_layers_and_heads_choose_and_change_nothing_else(plain: AuditReport) -> None:
    chosen = small_audit(layers=[2], heads=[4, 1, 4])
    assert [(record["layer"], record["head"]) for record in chosen.heads] == [(2, 1), (2, 4)]
    assert_close(chosen.heads, [record for record in plain.heads if record["layer"] == 2][::3])
    assert (chosen.manifest["layers"], chosen.manifest["heads"]) == ([2], [1, 4])


def test_examples_and_matrices_have_the_weights_the_classes_and_the_texts_of_their_window(
    tmp_path: Path,
) -> None:
    """The first example has the largest total variation; matrices are of the earliest of the longest windows."""
    texts = ["w1 w2 w3", "w4 w5 w6 w7 w8", "w9 w10 w11 w12 w13", "w14"]
    report = small_audit(texts, directory=tmp_path)
    rows = {tuple(row[name] for name in PLACE): row for row in rows_of(tmp_path)}
    model, tokenizer = small_model(), word_tokenizer()
    model.set_attn_implementation("eager")
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]
    with torch.no_grad():
        attentions = [model(**one, output_attentions=True).attentions for one in inputs]
    for key, examples in report.far_queries.items():
        mine = [row for place, row in rows.items() if place[:3] == key]
        worst = min(mine, key=lambda row: (-row["total_variation"], *(row[name] for name in PLACE[3:])))
        names = (*PLACE[3:], "total_variation", "relative_deviation")
        assert [getattr(examples[0], name) for name in names] == [worst[name] for name in names]
        for example in examples:
            heaviest = [max(one.first_order, one.exact) for one in example.templates]
            assert heaviest == sorted(heaviest, reverse=True)
            start, end = example.context_token or (0, 0)
            shown_token = "" if example.token in {"[CLS]", "[SEP]"} else example.token
            assert example.context[start:end] == shown_token
            row = rows[(*key, example.document, example.window, example.position)]
            ends = [
                max(KEY_CLASSES, key=lambda name: row[f"{side}_{name}"]) for side in ("leaves", "reaches")
            ]
            assert example.pattern == (row["class"], *ends)
            words = texts[example.document - 1].split()
            pieces = ["[CLS]", *(f" {word}" for word in words), " [SEP]"]
            passage: Any = example.passage
            assert [*passage.pieces] == pieces
            assert (example.token, example.context) == (pieces[example.position - 1].strip(), " ".join(words))
            first, exact = (unpacked(side, Packing.FINE) for side in (passage.first_order, passage.exact))
            own = attentions[example.document - 1][key.layer - 1][0, key.head - 1, example.position - 1]
            assert first == pytest.approx(own.tolist(), abs=1e-5)
            moved = sum(abs(one - other) for one, other in zip(first, exact, strict=True)) / 2
            assert moved == pytest.approx(row["total_variation"], abs=1e-4)
            for shown in example.templates:
                place = shown.position - 1
                assert shown.token == pieces[place].strip()
                assert (shown.first_order, shown.exact) == pytest.approx(
                    (first[place], exact[place]), abs=1e-4
                )
        matrix = report.matrices[key]
        assert (matrix.document, matrix.window, matrix.window_tokens) == (2, 1, 7)
        assert matrix.queries == matrix.keys == ("[CLS]", " w4", " w5", " w6", " w7", " w8", " [SEP]")
        first = torch.tensor(unpacked(matrix.first_order, Packing.ROUGH)).view(7, 8)
        own = attentions[1][key.layer - 1][0, key.head - 1].float()
        torch.testing.assert_close(first[:, :-1], own, atol=0.004, rtol=0)
        assert float(first[:, -1].max()) < 1e-3


def test_what_cannot_be_meant_makes_no_folder(tmp_path: Path) -> None:
    given: Any = {"tokenizer": word_tokenizer(), "texts": some_texts(), "directory": tmp_path / "out"}
    for options, message in (
        ({"layers": [3]}, r"layers \[3\] do not exist in BertModel, which has encoder self-attention 1 to 2"),
        ({"heads": [5, 1]}, r"heads \[5\] do not exist in BertModel, which has heads 1 to 4"),
        ({"resume": True, "directory": None}, r"without a directory"),
        ({"texts": [" ", ""]}, "no text in Python strings"),
        ({"texts": tiny_images(), "tokenizer": None}, r"Write \[inputs\]"),
        ({"tokenizer": None}, r"was given texts without a tokenizer.*\[\{'input_ids': tensor\}\]\."),
        *(
            ({"texts": [tiny_inputs("bert")], "tokenizer": None, **option}, "ready-made inputs were given")
            for option in ({"max_length": 8}, {"text_column": "words"}, {"whole_file": True})
        ),
    ):
        with pytest.raises(FenchelError, match=message):
            audit(small_model(), **{**given, **options})
        assert list(tmp_path.iterdir()) == []


def test_a_missing_package_shows_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name))
    observer = Interrupting(after=1, error=RuntimeError("too late"))
    with pytest.raises(MissingExtraError, match=r"jinja2 is not installed\. Run: pip install .*\[report\]'"):
        small_audit(directory=tmp_path, observer=observer)
    assert observer.calls == []


def test_the_time_taken_is_kept_and_added_up(tmp_path: Path) -> None:
    slow = itertools.count(step=7)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fenchel.auditing.run.ProgressClock", partial(ProgressClock, now=lambda: next(slow)))
        observer = Interrupting(-1, RuntimeError())
        whole = small_audit(observer=observer)
        with pytest.raises(KeyboardInterrupt):
            small_audit(directory=tmp_path, observer=Interrupting(2, KeyboardInterrupt()))
        resumed = small_audit(directory=tmp_path, resume=True)
    assert whole.manifest["seconds"] == resumed.manifest["seconds"] > 7
    # The first batch took seven seconds.
    expected = round(7 / (observer.seen[0].fraction or math.nan), 1)
    assert whole.manifest["estimated_seconds"] == resumed.manifest["estimated_seconds"] == expected
    assert f"<dd><bdi>{duration(expected)}</bdi></dd>" in render_html(whole)


def test_templates_can_be_scaled_as_the_paper_prints() -> None:
    def audited(family: str, **options: Any) -> AuditReport:
        given: dict[str, Any] = {
            "space": "input",
            "queries": "all",
            "tol": 1e-6,
            "model": small_model(family),
        }
        return small_audit(some_texts(3), **given | options)

    # BERT divides by the square root of the head's width itself, T5 does not.
    bert, same = audited("bert"), audited("bert", template_scale="sqrt_d")
    assert same.heads == bert.heads
    assert "x_i/sqrt(d')" in same.manifest["convention"]
    # With templates x/√d' a problem is that of x with √d' times the evidence and α = 1/d', in another unit.
    other = small_model("t5")
    width = other.config.d_kv
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if name.endswith("SelfAttention.q.weight"):
                weight.mul_(width**0.5)
    first: dict[str, Any] = {"dtype": "float64", "layers": [1]}
    printed, own = audited("t5", template_scale="sqrt_d", **first), audited("t5", **first)
    same = audited("t5", model=other, alpha=1 / width, **first)
    for ours, theirs in zip(printed.heads, same.heads, strict=True):
        if ours["kind"] == "encoder_self":
            for metric in METRICS:
                assert ours[f"{metric}_mean"] == pytest.approx(theirs[f"{metric}_mean"], rel=1e-4), metric
    assert own.heads[0]["relative_deviation_mean"] > 1.5 * printed.heads[0]["relative_deviation_mean"]
    with pytest.raises(InputError, match="in space key templates are the keys as the model scales them"):
        audited("bert", space="key", template_scale="sqrt_d")


def test_progress_is_told_and_the_model_left_as_it_was() -> None:
    model, observer = small_model().train(), Interrupting(after=-1, error=RuntimeError())
    model.encoder.layer[0].eval()
    state = torch.get_rng_state()
    report = small_audit(observer=observer, model=model)
    assert (model.training, model.encoder.layer[0].training) == (True, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert observer.calls == [f"started {report.manifest['model']}", "finished"]
    last = observer.seen[-1]
    assert (last.tokens, last.documents) == (report.manifest["tokens"], report.manifest["documents"])
    assert (last.fraction, last.seconds_left) == (1.0, pytest.approx(0.0))


def test_values_that_are_no_numbers_stop_the_audit_and_queries_not_converged_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = run.measure

    def changed(change: Any) -> None:
        def tampered(call: Any, *solving: Any, **options: Any) -> Any:
            measures = real(call, *solving, **options)
            change(call, measures)
            return measures

        monkeypatch.setattr(run, "measure", tampered)

    changed(lambda call, one: one.values["gap"][0, call.site.layer - 1, 2].fill_(math.nan))
    with pytest.raises(FenchelError, match=r"gap is nan for 1 of .* queries of encoder_self layer 1 head 1"):
        small_audit(directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    changed(lambda call, one: one.values["converged"][:, 0, 1].fill_(False))
    report = small_audit()
    missed = report.heads[0]["not_converged"]
    assert missed > report.heads[1]["not_converged"] == 0
    assert report.summary["not_converged"] == 2 * missed


def test_the_manifest_says_what_was_done(plain: AuditReport) -> None:
    manifest = small_audit(some_texts(seed=9), seed=3).manifest
    said = {
        "model_class": "BertModel", "dtype": "float64", "device": "cpu", "torch": metadata.version("torch"),
        "python": platform.python_version(), "alpha": 1.0, "tol": 2e-4, "space": "key", "seed": 3,
        "max_length": 12, "stride": 8, "batch_size": 2, "shard": "0/1",
    }  # fmt: skip
    assert said.items() <= manifest.items()
    assert manifest["text_sha256"] != plain.manifest["text_sha256"]
    recorded = {option.name for option in declared(AuditOptions).values() if option.recorded is not False}
    assert {"alpha", "template_scale"} <= recorded <= set(KEYS)
