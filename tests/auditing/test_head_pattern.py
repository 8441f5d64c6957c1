"""Which pattern a head shows, by the thresholds that the documentation names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.auditing.advice import GROUPS, LARGE_SHARE, STILL, ClassMove, HeadPattern, head_patterns
from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.moves import KEY_CLASSES, MOVE_COLUMNS
from tests.auditing.small_audits import known_statistics, small_audit

KEY = HeadKey("encoder_self", 1, 1)


def pattern(leaves: dict[str, float], reaches: dict[str, float]) -> HeadPattern:
    """A head from and to whose groups of keys so much of a query's weight moves."""
    names = {group: members[0] for group, members in GROUPS.items()}
    classes = {name: ClassMove(1 / len(KEY_CLASSES), 0.0, 0.0) for name in KEY_CLASSES}
    for group, name in names.items():
        classes[name] = ClassMove(0.2, leaves.get(group, 0.0), reaches.get(group, 0.0))
    return HeadPattern(KEY, 10, sum(leaves.values()), classes, (), ())


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
    found = HeadPattern(KEY, 10, 0.25, classes, (), ())
    assert found.share("sinks", "leaves") == pytest.approx(0.8)
    assert found.share("sinks", "reaches") == 0.0
    assert classes["first"].exact == pytest.approx(0.3)
    assert classes["first"].net == pytest.approx(-0.1)


def test_tokens_that_get_too_much_and_too_little() -> None:
    # Ten queries: of each, the key that loses most and the one that gains most.
    lost = [(3, 0.5)] * 4 + [(9, 0.1)] * 5 + [(5, 0.25)]
    gained = [(5, 0.25)] * 4 + [(9, 0.1)] * 5 + [(8, 0.75)]
    columns = {name: torch.zeros(2, 10) for name in (*METRICS, *MOVE_COLUMNS)}
    for side, moves in (("leaves", lost), ("reaches", gained)):
        columns[f"{side}_token"] = torch.tensor([[token for token, _ in moves], [4] * 10])
        columns[f"{side}_weight"] = torch.tensor([[weight for _, weight in moves], [0.0] * 10])
    statistics = known_statistics([("cross", 2, (4, 1), columns)], {3: "the", 5: "bank"})
    other, head = head_patterns(statistics.moves(), statistics.moved_tokens(), statistics.words)
    assert (head.key.head, other.key.head) == (4, 1)
    assert [(token.token, token.net) for token in head.too_much] == [("the", pytest.approx(-0.2))]
    expected = [(5, "bank", pytest.approx(0.075)), (8, "8", pytest.approx(0.075))]
    assert sorted((token.id, token.token, token.net) for token in head.too_little) == expected
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
        nets = [token.net for token in (*found.too_little, *reversed(found.too_much))]
        assert nets == sorted(nets, reverse=True)


def test_patterns_are_counted_in_the_summary(tmp_path: Path) -> None:
    report = small_audit(directory=tmp_path, baseline="twin")
    assert json.loads((tmp_path / "twin.json").read_text()) == report.twin_heads
    summary: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
    assert [found["pattern"] for found in summary["suggestions"]]
    assert summary["effects"] is None
    assert sum(summary["patterns"].values()) >= len(report.heads)
    assert summary["twin"]["encoder_self"]["queries"] == summary["kinds"]["encoder_self"]["queries"]
    small_audit(directory=tmp_path, baseline="none", overwrite=True)
    assert not (tmp_path / "twin.json").exists()
