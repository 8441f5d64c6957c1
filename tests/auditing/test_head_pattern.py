"""Which pattern a head shows, by the thresholds that the documentation names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.auditing.head_pattern import GROUPS, LARGE_SHARE, STILL, ClassMove, HeadPattern, head_patterns
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.pattern import KEY_CLASSES, TOKEN_TYPES
from fenchel.auditing.pattern_counts import UNIT, PatternCounts
from tests.auditing.small_audits import small_audit

KEY = HeadKey("encoder_self", 1, 1)


def pattern(leaves: dict[str, float], reaches: dict[str, float]) -> HeadPattern:
    """A head from and to whose groups of keys so much of a query's weight moves."""
    names = {group: members[0] for group, members in GROUPS.items()}
    classes = {name: ClassMove(1 / len(KEY_CLASSES), 0.0, 0.0) for name in KEY_CLASSES}
    for group, name in names.items():
        classes[name] = ClassMove(0.2, leaves.get(group, 0.0), reaches.get(group, 0.0))
    return HeadPattern(KEY, 10, sum(leaves.values()), classes, {}, (), ())


@pytest.mark.parametrize(
    ("leaves", "reaches", "names"),
    [
        ({"sinks": 0.1}, {"rest": 0.1}, ("leaves_sinks",)),
        ({"rest": 0.1}, {"sinks": 0.1}, ("reaches_sinks",)),
        ({"neighbours": 0.1}, {"itself": 0.1}, ("leaves_neighbours", "reaches_itself")),
        ({"itself": 0.04, "punctuation": 0.04}, {"rest": 0.08}, ("leaves_itself", "leaves_punctuation")),
        ({"rest": 0.1}, {"rest": 0.1}, ("among_the_rest",)),
        ({"sinks": 0.041, "rest": 0.059}, {"rest": 0.1}, ("leaves_sinks",)),
        ({"sinks": 0.03, "rest": 0.07}, {"rest": 0.1}, ("among_the_rest",)),
        (
            {"sinks": 0.03, "neighbours": 0.03, "rest": 0.03},
            {"rest": 0.03, "itself": 0.03, "punctuation": 0.03},
            ("mixed",),
        ),
        ({"sinks": 0.019}, {"rest": 0.019}, ("still",)),
        ({"sinks": 0.02}, {"rest": 0.02}, ("leaves_sinks",)),
    ],
)
def test_the_rule(leaves: dict[str, float], reaches: dict[str, float], names: tuple[str, ...]) -> None:
    assert pattern(leaves, reaches).names == names


def test_the_thresholds_are_those_of_the_documentation() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8").split())
    assert f"at least {LARGE_SHARE:.0%}".replace("%", " %") in text
    assert f"below {STILL}" in text


def test_sinks_are_the_first_and_the_special_tokens() -> None:
    classes = {name: ClassMove(0.1, 0.0, 0.05) for name in KEY_CLASSES}
    classes |= {"first": ClassMove(0.4, 0.1, 0.0), "special": ClassMove(0.3, 0.1, 0.0)}
    classes["rest"] = ClassMove(0.2, 0.05, 0.05)
    found = HeadPattern(KEY, 10, 0.25, classes, {}, (), ())
    assert found.share("sinks", "leaves") == pytest.approx(0.8)
    assert found.share("sinks", "reaches") == 0.0
    assert classes["first"].exact == pytest.approx(0.3)
    assert classes["first"].net == pytest.approx(-0.1)


def test_tokens_that_get_too_much_and_too_little() -> None:
    counts = PatternCounts(2)
    counts.type_queries[TOKEN_TYPES.index("word")] = 10
    counts.token_ids = torch.tensor([3, 5, 8, 9])
    moves = torch.tensor([[[2.0, 0.5], [0.25, 1.0], [0.0, 0.75], [1.0, 1.0]], [[0.0, 0.0]] * 4])
    counts.token_moves = (moves / UNIT).long()
    head, other = head_patterns("cross", 2, (4, 1), counts, {3: "the", 5: "bank"})[::-1]
    assert (head.key.head, other.key.head) == (4, 1)
    assert [(token.token, token.net) for token in head.too_much] == [("the", pytest.approx(-0.15))]
    assert [(token.id, token.token) for token in head.too_little] == [(5, "bank"), (8, "8")]
    assert other.too_much == other.too_little == ()


def test_the_numbers_of_an_audit_are_in_keeping() -> None:
    report = small_audit()
    assert [found.key for found in report.patterns] == [
        HeadKey(record["kind"], record["layer"], record["head"]) for record in report.heads
    ]
    for found, record in zip(report.patterns, report.heads, strict=True):
        assert found.queries == record["queries"]
        assert found.moved == pytest.approx(record["total_variation_mean"], rel=1e-6)
        assert sum(move.attention for move in found.classes.values()) == pytest.approx(1)
        assert sum(move.exact for move in found.classes.values()) == pytest.approx(1)
        assert sum(moves.queries for moves in found.types.values()) == found.queries
        of_types = sum(moves.queries * moves.moved for moves in found.types.values())
        assert of_types / found.queries == pytest.approx(found.moved)
        assert set(found.types) == {"special", "word"} or set(found.types) == {"special", "word", "piece"}
        nets = [token.net for token in (*found.too_little, *reversed(found.too_much))]
        assert nets == sorted(nets, reverse=True)


def test_patterns_are_written_and_survive_json(tmp_path: Path) -> None:
    report = small_audit(directory=tmp_path, baseline="twin")
    written: dict[str, Any] = json.loads((tmp_path / "patterns.json").read_text())
    assert written["heads"] == json.loads(json.dumps([found.to_json() for found in report.patterns]))
    assert written["thresholds"] == {"still": STILL, "large_share": LARGE_SHARE}
    assert [found["pattern"] for found in written["suggestions"]]
    assert len(written["twin"]) == len(written["heads"])
    assert written["effects"] is None
    assert json.loads((tmp_path / "twin.json").read_text()) == report.twin_heads
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert sum(summary["patterns"].values()) >= len(report.heads)
    assert summary["twin"]["encoder_self"]["queries"] == summary["kinds"]["encoder_self"]["queries"]


def test_without_a_twin_an_earlier_one_is_not_left_in_the_folder(tmp_path: Path) -> None:
    small_audit(directory=tmp_path, baseline="twin")
    small_audit(directory=tmp_path, baseline="none", overwrite=True)
    assert not (tmp_path / "twin.json").exists()
