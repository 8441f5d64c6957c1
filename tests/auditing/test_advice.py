"""What is suggested, and that the command it prints is one that runs."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import fenchel
from fenchel.arguments import Kind
from fenchel.auditing.advice import (
    GROUPS,
    MOST_HEADS,
    ClassMove,
    HeadPattern,
    head_patterns,
    importance,
    suggestions,
)
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import METRICS, AttentionModule, HeadKey
from fenchel.auditing.run import audit
from fenchel.auditing.weight_moves import KEY_CLASSES, MOVE_COLUMNS
from fenchel.cli import main
from fenchel.swap.report import SwapReport
from tests.auditing.small_audits import known_statistics, small_audit, small_model, some_texts
from tests.cli.conftest import saved
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import tiny_images, tiny_model


def test_the_pattern_that_moves_most_comes_first_and_still_heads_last() -> None:
    heads = [
        pattern({group: moved}, {"rest": moved}, HeadKey("encoder_self", *place))
        for *place, group, moved in (
            (1, 1, "sinks", 0.001), (1, 2, "sinks", 0.2), (2, 1, "sinks", 0.3), (2, 2, "neighbours", 0.1),
        )
    ]  # fmt: skip
    found = suggestions(heads, {"model": "demo", "texts": "a b.txt"}, {})
    assert [one.pattern for one in found] == ["leaves_sinks", "leaves_neighbours", "still"]
    assert found[0].heads == (HeadKey("encoder_self", 2, 1), HeadKey("encoder_self", 1, 2))
    assert found[-1].command is None


def test_heads_are_said_to_matter_by_their_removal_alone() -> None:
    heads = [HeadKey("encoder_self", layer, head) for layer in (1, 2) for head in (1, 2)]
    modules: dict[tuple[Kind, int], AttentionModule] = {
        ("encoder_self", layer): AttentionModule("encoder_self", layer, f"l{layer}", layer)
        for layer in (1, 2)
    }
    manifest = {"model": "demo", "texts": "a b.txt", "space": "input"}
    found = importance(heads, manifest, modules)
    assert found.passes == 2 * 4 + 2
    assert f"{found.passes} passes" in found.said
    assert found.command == (
        "fenchel swap demo --text 'a b.txt' --per-head --estimators none --ablations zero,mean "
        "--out which-heads"
    )
    given: dict[str, Any] = {"layers": [2], "max_length": 128, "dtype": "bfloat16", "revision": "main"}
    some = importance(heads[2:], {**manifest, **given, "whole_file": True}, modules)
    assert "--whole-file --max-length 128 --dtype bfloat16 --revision main" in str(some.command)
    assert "--layers 2 --heads 1,2 --out" in str(some.command)
    assert "--label-column" not in found.said + str(found.command)
    classified = importance(heads, {**manifest, "classifies": True, "texts": "a.parquet"}, modules)
    assert "--label-column label --per-head" in str(classified.command)
    even_so = importance(heads, {**manifest, "even_so": True}, modules)
    assert even_so.command is None
    for other in {}, {"space": "key", "alpha": 2.0}:  # a swap infers in space key, and with α = 1
        (found,) = suggestions([pattern({"sinks": 0.2}, {"rest": 0.2})], {**manifest, **other}, modules)
        assert found.command is None


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_the_command_runs_and_its_swap_goes_beside_the_audit(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "model", family)
    text = tmp_path / "it's a text.txt"
    text.write_text("\n".join(some_texts()))
    monkeypatch.chdir(tmp_path)
    audited = ["audit", str(folder), "--text", str(text), "--space", "key"]
    audited += ["--max-length", "12", "--baseline", "none"]
    assert main([*audited, "--out", "audit"]) == 0
    report = AuditReport.load(tmp_path / "audit")
    commands = [found.command for found in report.suggestions if found.command is not None]
    assert commands
    assert str(report.importance.command) in capsys.readouterr().out.replace("\n  ", "")
    words = shlex.split(commands[0])
    assert words[:2] == ["fenchel", "swap"]
    assert main([*words[1:], "--alphas", "0.8", "--bootstrap", "100"]) == 0
    swap = SwapReport.load(words[words.index("--out") + 1])
    effects: Any = report.beside_swap(swap).effects
    wanted = report.suggestions[0].heads[:MOST_HEADS]
    assert {head.key for head in effects.heads} >= set(wanted)
    assert main([*audited, "--out", "beside", "--swap", words[words.index("--out") + 1]]) == 0
    beside = json.loads((tmp_path / "beside" / "summary.json").read_text())["effects"]
    assert beside["note"] == ""
    assert [one["effect"] for one in beside["heads"]] == [head.effect for head in effects.heads]


def test_texts_of_python_and_images_get_a_call_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, tokenizer, texts = small_model(), word_tokenizer(), some_texts()
    report = small_audit(model=model, texts=texts, space="key")
    command = next(found.command for found in report.suggestions if found.command)
    assert command.startswith("fenchel.swap.swap(model, tokenizer, texts, per_head=True, layers=[")
    known = {"fenchel": fenchel, "model": model, "tokenizer": tokenizer, "texts": texts}
    effects: Any = report.beside_swap(eval(command, known)).effects  # noqa: S307 - what is printed for people to run
    assert {head.key for head in effects.heads} >= set(report.suggestions[0].heads[:MOST_HEADS])
    removed = eval(str(report.importance.command), known)  # noqa: S307
    assert {one["estimator"] for one in removed.results["ranking"]} == {"zero", "mean"}
    few = small_audit(model=model, texts=texts[:2])  # too few sentences to rank
    assert {found.command for found in few.suggestions} == {None}
    known = {"fenchel": fenchel, "model": tiny_model("vit"), "batches": [tiny_images(batch=2, seed=1)]}
    images: Any = audit(known["model"], None, known["batches"])
    command = next(found.command for found in images.suggestions if found.command)
    assert command.startswith("fenchel.swap.swap(model, None, batches, per_head=True, layers=[")
    assert eval(command, known).results["units"] == {"examples": 2}  # noqa: S307


KEY = HeadKey("encoder_self", 1, 1)


def pattern(leaves: dict[str, float], reaches: dict[str, float], key: HeadKey = KEY) -> HeadPattern:
    """A head from and to whose groups of keys so much of a query's weight moves."""
    names = {group: members[0] for group, members in GROUPS.items()}
    classes = {name: ClassMove(1 / len(KEY_CLASSES), 0.0, 0.0) for name in KEY_CLASSES}
    for group, name in names.items():
        classes[name] = ClassMove(0.2, leaves.get(group, 0.0), reaches.get(group, 0.0))
    return HeadPattern(key, 10, sum(leaves.values()), classes, (), ())


def test_the_rule() -> None:
    for leaves, reaches, names in (
        ({"sinks": 0.1}, {"rest": 0.1}, ("leaves_sinks",)),
        ({"neighbours": 0.1}, {"itself": 0.1}, ("leaves_neighbours", "reaches_itself")),
        ({"itself": 0.04, "punctuation": 0.04}, {"rest": 0.08}, ("leaves_itself", "leaves_punctuation")),
        ({"sinks": 0.041, "rest": 0.059}, {"rest": 0.1}, ("leaves_sinks",)),
        ({"sinks": 0.03, "rest": 0.07}, {"rest": 0.1}, ("among_the_rest",)),
        (
            {"sinks": 0.03, "neighbours": 0.03, "rest": 0.03},
            {"rest": 0.03, "itself": 0.03, "punctuation": 0.03},
            ("mixed",),
        ),
        ({"sinks": 0.019}, {"rest": 0.019}, ("still",)),
        ({"sinks": 0.02}, {"rest": 0.02}, ("leaves_sinks",)),
    ):
        assert pattern(leaves, reaches).names == names


def test_tokens_that_get_too_much_and_too_little() -> None:
    # Ten queries: of each, the key that loses most and the one that gains most.
    lost = [(3, 0.5)] * 4 + [(9, 0.1)] * 5 + [(5, 0.25)]
    gained = [(5, 0.25)] * 4 + [(9, 0.1)] * 5 + [(8, 0.75)]
    columns = {name: torch.zeros(2, 10) for name in (*METRICS, *MOVE_COLUMNS)}
    for side, moves in (("leaves", lost), ("reaches", gained)):
        columns[f"{side}_token"] = torch.tensor([[token for token, _ in moves], [4] * 10])
        columns[f"{side}_weight"] = torch.tensor([[weight for _, weight in moves], [0.0] * 10])
    statistics = known_statistics([("cross", 2, (4, 1), columns)], {3: "the", 5: "bank"})
    other, head = head_patterns(statistics)
    assert (head.key.head, other.key.head) == (4, 1)
    assert [(token.token, token.net) for token in head.too_much] == [("the", pytest.approx(-0.2))]
    expected = [(5, "bank", pytest.approx(0.075)), (8, "8", pytest.approx(0.075))]
    assert sorted((token.id, token.token, token.net) for token in head.too_little) == expected
    assert other.too_much == other.too_little == ()


def test_patterns_are_in_keeping_with_the_heads_and_counted_in_the_summary(tmp_path: Path) -> None:
    report = small_audit(directory=tmp_path, baseline="twin")
    for found, record in zip(report.patterns, report.heads, strict=True):
        assert found.key == HeadKey(record["kind"], record["layer"], record["head"])
        assert found.queries == record["queries"]
        assert found.moved == pytest.approx(record["total_variation_mean"], rel=1e-6)
        for weight in ("attention", "exact"):
            assert sum(getattr(move, weight) for move in found.classes.values()) == pytest.approx(1)
        assert found.share("sinks", "leaves") == pytest.approx(
            sum(found.classes[name].leaves for name in ("first", "special")) / found.moved
        )
    summary: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
    assert [found["pattern"] for found in summary["suggestions"]]
    assert sum(summary["patterns"].values()) >= len(report.heads)
    assert json.loads((tmp_path / "twin.json").read_text()) == report.twin_heads
    small_audit(directory=tmp_path, baseline="none", overwrite=True)
    assert not (tmp_path / "twin.json").exists()
