"""The pieces that the page, the figures and the tables are put together from."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import HeadExample, TemplateWeight
from fenchel.auditing.heads import HeadKey, Kind
from fenchel.auditing.report import notebook_html, summary_sentence, terminal_table
from fenchel.auditing.report.distribution import AXES, distribution
from fenchel.auditing.report.example import marked, worst_heads
from fenchel.auditing.report.findings import Findings
from fenchel.auditing.report.panel import outline
from fenchel.auditing.report.reproduce import command, manifest_entries
from fenchel.runs.number import short
from tests.auditing.report.samples import HOSTILE, TEXT, manifest, sample_report


def is_falling(numbers: list[float]) -> bool:
    return all(after < before for before, after in pairwise(numbers))


def test_an_outline_has_the_area_of_its_bars() -> None:
    def area(path: str) -> float:
        x = y = total = 0.0
        for letter, number in re.findall(r"([HV])([\d.]+)", path.replace("M0 100", "")):
            if letter == "H":
                total += (float(number) - x) * (100 - y)
                x = float(number)
            else:
                y = float(number)
        return total / 100

    fractions = [0.1, 0.1, 0.5, 0.0, 0.3]
    assert area(outline(fractions)) == pytest.approx(100 * sum(fractions) / 5)
    assert area(outline([0.2] * 5)) == pytest.approx(20)
    assert area(outline(fractions)) != pytest.approx(area(outline([0.1, 0.1, 0.6, 0.0, 0.3])))


def test_a_distribution_counts_every_query_and_puts_the_mean_of_all() -> None:
    report = sample_report({"encoder_self": (2, 3)}, queries=40)
    for axis in AXES:
        shape = distribution(report.statistics, axis, "encoder_self", 2)
        assert shape.queries == 120
        assert sum(shape.fractions) == pytest.approx(1.0)
        assert shape.mean == report.statistics.mean(axis.metric, "encoder_self", 2)


def test_findings_weigh_heads_by_their_queries() -> None:
    one, two = (
        sample_report({"encoder_self": (1, 1)}, queries=30),
        sample_report({"cross": (1, 1)}, queries=90),
    )
    one.statistics.merge(two.statistics)
    findings = Findings.of(one)
    first, second = (one.statistics.mean("mean_error", *key) for key in one.statistics.keys())  # noqa: SIM118
    assert findings.mean("mean_error") == pytest.approx((30 * first + 90 * second) / 120)
    assert findings.queries_per_head is None
    assert findings.problems == 120
    assert findings.kinds == ("encoder_self", "cross")


def test_the_farthest_heads_come_first() -> None:
    findings = Findings.of(sample_report({"encoder_self": (3, 4)}))
    means = [head.value("total_variation") or 0.0 for head in findings.farthest("total_variation", 12)]
    assert is_falling(means)
    assert means[0] == max(head.value("total_variation") or 0.0 for head in findings.heads)


@pytest.mark.parametrize(
    ("context", "token", "position", "expected"),
    [
        ("the cat then sat", "the", 2, ("", "the", " cat then sat")),
        ("then the cat", "the", 3, ("then ", "the", " cat")),
        ("a b c a b c a", "a", 40, ("a b c ", "a", " b c a")),
        ("walking", "##ing", 3, ("walk", "ing", "")),
        ("Truth be told", "▁truth", 2, ("", "Truth", " be told")),
        ("a (b) c", "(", 3, ("a ", "(", "b) c")),
        ("no such word", "[CLS]", 1, ("no such word", "", "")),
        ("only a mark", "▁", 2, ("only a mark", "", "")),
        ("", "x", 1, ("", "", "")),
    ],
)
def test_the_token_is_marked_in_its_context(
    context: str, token: str, position: int, expected: tuple[str, str, str]
) -> None:
    assert marked(context, token, position) == expected


def test_a_word_that_occurs_twice_is_marked_where_the_query_is() -> None:
    words = TEXT.split()
    for place, word in enumerate(words):
        context = words[max(0, place - 12) : place + 13]
        before, found, _ = marked(" ".join(context), word, place + 1)
        assert found == word
        if place + 12 < len(words):
            assert len(before.split()) == min(place, 12)


def test_cards_hold_both_weights_in_the_order_of_the_text() -> None:
    report = sample_report({"encoder_self": (1, 1)})
    key = HeadKey("encoder_self", 1, 1)
    weights = (TemplateWeight(9, "late", 0.1, 0.8), TemplateWeight(2, "early", 0.4, 0.2))
    report.far_queries[key] = (HeadExample(key, 0.7, math.inf, 1, 1, 2, "early", weights, "early and late"),)
    (card,) = worst_heads(report, Findings.of(report))
    assert card.reasons == ["largest total variation", "largest output error"]
    assert [(bar.token, bar.first_order, bar.exact) for bar in card.bars] == [
        ("early", "0.400", "0.200"),
        ("late", "0.100", "0.800"),
    ]
    assert [(bar.first_order_width, bar.exact_width) for bar in card.bars] == [(50.0, 25.0), (12.5, 100.0)]
    assert [bar.is_query for bar in card.bars] == [True, False]


def test_the_query_of_cross_attention_is_no_template() -> None:
    report = sample_report({"cross": (1, 1)})
    (card,) = worst_heads(report, Findings.of(report))
    assert not any(bar.is_query for bar in card.bars)


def test_the_command_can_be_pasted_into_a_shell() -> None:
    line = command(
        manifest(model="a b; rm -rf /", layers=[1, 3], max_tokens=500, whole_file=True, text_column="c")
    )
    assert line == (
        "fenchel audit 'a b; rm -rf /' --text pride-and-prejudice.txt --whole-file --text-column c "
        "--space input --alpha 1 --tol 0.0001 --max-length 128 --stride 128 --batch-size 8 --max-tokens 500 "
        "--dtype float32 --layers 1,3 --seed 0 --baseline none --out audit"
    )


def test_the_manifest_is_readable() -> None:
    entries = dict(manifest_entries(manifest(layers=[1, 2], tokens=12345)))
    assert entries["tokens"] == "12,345"
    assert entries["layers"] == "1, 2"
    assert entries["heads"] == "all"
    assert entries["max tokens"] == "no limit"


def printed(report: AuditReport, width: int = 120) -> str:
    from rich.console import Console

    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(terminal_table(report))
    console.file.close()
    return console.export_text()


def test_the_terminal_table_has_a_row_a_layer_and_the_farthest_heads() -> None:
    report = sample_report({"encoder_self": (2, 3), "cross": (1, 3)}, model="[red]demo[/red] [/nonsense]")
    text = printed(report)
    assert "[red]demo[/red] [/nonsense]" in text
    assert short(report.statistics.mean("mean_error", "encoder_self", 2)) in text
    farthest = max(report.heads, key=lambda head: head["total_variation_mean"])
    places = [line.split()[-6:-4] for line in text.split("Heads in which")[1].splitlines() if "0." in line]
    assert len(places) == 3
    assert places[0] == [str(farthest["layer"]), str(farthest["head"])]
    assert "did not converge" not in text
    assert "4 of 1,440 problems did not converge: encoder self 2, cross 2" in printed(
        sample_report({"encoder_self": (2, 3), "cross": (1, 3)}, missed=2)
    )


@pytest.mark.parametrize("shape", [{"encoder_self": (6, 12)}, {"decoder_self": (24, 16), "cross": (24, 16)}])
def test_the_terminal_table_fits_eighty_columns_unabridged(shape: dict[Kind, tuple[int, int]]) -> None:
    text = printed(sample_report(shape, queries=3), width=80)
    assert "…" not in text
    rows = [line for line in text.splitlines() if line.strip().endswith((" 36", " 48"))]
    assert len(rows) == sum(layers for layers, _ in shape.values())
    assert max(map(len, text.splitlines())) <= 80


def test_the_terminal_table_writes_unbounded_certificates() -> None:
    assert "∞" in printed(sample_report({"encoder_self": (1, 2)}, unbounded=True))


def test_the_sentence_says_what_is_certified() -> None:
    sentence = summary_sentence(sample_report({"encoder_self": (1, 2)}, queries=20))
    assert re.match(r"demo, 2 heads: on average [\d.]+\u202f% of attention's weight would move and", sentence)
    assert re.search(r"[\d.]+\u202f% off the exact one, where the covariance alone predicts [\d.]+", sentence)
    assert sentence.endswith("all 40 exact solves are certified in float64 to 0.0001.")
    missed = summary_sentence(sample_report({"encoder_self": (1, 2)}, queries=20, missed=3))
    assert missed.endswith(
        "3 of 40 exact solves did NOT converge, the others are certified in float64 to 0.0001."
    )


def test_the_notebook_table_is_escaped_and_has_neither_script_nor_link() -> None:
    report = sample_report({"encoder_self": (2, 2)}, model=HOSTILE)
    html = notebook_html(report)
    assert HOSTILE not in html
    assert "&lt;/script&gt;" in html
    assert not re.search(r"<(script|a|img|style|link)\b", html)
    assert short(report.statistics.mean("total_variation", "encoder_self", 2)) in html
    assert html == report._repr_html_()


def test_the_notebook_table_of_nothing_says_so() -> None:
    report = sample_report({"encoder_self": (1, 1)})
    report.heads.clear()
    assert "nothing has been measured" in notebook_html(report)
