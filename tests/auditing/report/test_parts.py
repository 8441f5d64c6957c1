"""The pieces that the page, the figures and the tables are put together from."""

import math
import re
from dataclasses import replace

import pytest
import torch

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import HeadExample, TemplateWeight
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.report import notebook_html, render_html, summary_sentence, terminal_table
from fenchel.auditing.report.findings import headline
from fenchel.auditing.report.html import command
from fenchel.auditing.report.plots import (
    AXES,
    farthest_heads,
    opened_data,
    outline,
    panels,
    scatters,
    shown_queries,
)
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import percent, short
from tests.auditing.report.samples import effects_of, manifest, sample_report
from tests.auditing.small_audits import known_statistics
from tests.pages import assert_unabridged, shown


def test_an_outline_has_the_area_of_its_bars() -> None:
    fractions = [0.1, 0.1, 0.5, 0.0, 0.3]
    x = y = area = 0.0
    for letter, number in re.findall(r"([HV])([\d.]+)", outline(fractions).replace("M0 100", "")):
        if letter == "H":
            area += (float(number) - x) * (100 - y)
            x = float(number)
        else:
            y = float(number)
    assert area / 100 == pytest.approx(100 * sum(fractions) / 5)


def test_a_distribution_counts_every_query_and_puts_the_mean_of_all() -> None:
    report = sample_report({"encoder_self": (2, 3)}, queries=40)
    for axis in AXES:
        counts = report.statistics.histograms(axis.metric, axis.upper, 25)
        layers, grid = panels(report.statistics, "encoder_self", counts)
        mean = report.statistics.mean(axis.metric, "encoder_self", 2)
        assert (layers[1]["queries"], layers[1][f"{axis.metric}_mean"]) == (120, mean)
        assert [panel["queries"] for _, heads in grid.rows for panel in heads if panel] == [40] * 6


def test_means_weigh_heads_by_their_queries() -> None:
    layers: list[tuple[Kind, int, float]] = [("encoder_self", 30, 0.1), ("cross", 90, 0.3)]
    statistics = known_statistics(
        [(kind, 1, [1], {"mean_error": torch.full((1, queries), value)}) for kind, queries, value in layers]
    )
    assert statistics.mean("mean_error") == pytest.approx((30 * 0.1 + 90 * 0.3) / 120)
    assert statistics.total("queries") == 120


def test_sentences_have_the_numbers_of_the_audit() -> None:
    clean, missed = (sample_report({"encoder_self": (2, 3)}, queries=50, missed=n) for n in (0, 3))
    for said in (" ".join(headline(clean)), summary_sentence(clean)):
        for metric in ("total_variation", "relative_deviation"):
            mean = sum(clean.statistics.mean(metric, "encoder_self", layer) for layer in (1, 2)) / 2
            assert percent(mean) in said
        assert f"output before the value map is off by {percent(clean.statistics.mean('mean_error'))}" in said
    keys = replace(clean, manifest=clean.manifest | {"space": "key"})
    assert "and the mean of a head's keys is off by" in " ".join(headline(keys))
    assert "all 300 exact" in summary_sentence(clean)
    assert "3 of 300 exact solves did NOT converge, the others are certified" in summary_sentence(missed)
    empty = AuditReport(manifest(), AuditStatistics())
    assert "nothing has been measured" in notebook_html(empty)
    assert repr(empty) == "<AuditReport of demo: 0 heads, 0 problems>"
    assert repr(missed).endswith("3 not converged>")


def test_cards_hold_both_weights_in_the_order_of_the_text() -> None:
    report = sample_report({"encoder_self": (1, 1)})
    key = HeadKey("encoder_self", 1, 1)
    weights = (TemplateWeight(9, "late", 0.1, 0.8), TemplateWeight(2, "early", 0.4, 0.2))
    report.far_queries[key] = (
        HeadExample(
            key, 0.7, math.inf, 1, 1, 2, ("", "", ""), "early", weights, "early and late", None, None
        ),
    )
    (card,) = farthest_heads(report)
    assert card["reasons"] == ["largest total variation", "largest error of the mean"]
    _, _, body = render_html(report).partition('<table class="weights">')
    rows = re.findall(r"<tr.*?</tr>", body.partition("</table>")[0])[1:]
    texts = [[text for text in re.split(r"<[^>]*>", row) if text] for row in rows]
    assert texts == [["2", "early", "0.400", "0.200"], ["9", "late", "0.100", "0.800"]]
    assert [re.findall(r"width:([\d.]+)%", row) for row in rows] == [["50.0", "25.0"], ["12.5", "100.0"]]
    assert ['class="query"' in row for row in rows] == [True, False]


def test_the_command_can_be_pasted_into_a_shell() -> None:
    line = command(
        manifest(model="a b; rm -rf /", layers=[1, 3], max_tokens=500, whole_file=True, text_column="c")
    )
    assert line == (
        "fenchel audit 'a b; rm -rf /' --text pride-and-prejudice.txt --dtype float32 --space input --alpha 1 "
        "--tol 0.0001 --max-length 128 --stride 128 --batch-size 8 --max-tokens 500 --layers 1,3 --baseline auto "
        "--whole-file --text-column c --seed 0 --queries all --out audit"
    )
    assert "--shard 1/3 " in command(manifest(shard="1/3"))
    assert "shard='1/3'" in command(manifest(shard="1/3", texts="Python strings"))
    assert "shard" not in command(manifest(shard="0/1")) + command(manifest(shard="0,2/3", merged_from=2))


def test_the_terminal_table_has_a_row_a_layer_and_the_farthest_heads() -> None:
    report = sample_report(
        {"encoder_self": (2, 3), "cross": (1, 3)}, model="[red]demo[/red] [/nonsense]", missed=2
    )
    text = shown(terminal_table(report), 120)
    assert "[red]demo[/red] [/nonsense]" in text
    assert short(report.statistics.mean("mean_error", "encoder_self", 2)) in text
    farthest = max(report.heads, key=lambda head: head["total_variation_mean"])
    lines = [line for line in text.split("Heads in which")[1].splitlines() if "±" not in line]
    places = [line.split()[-6:-4] for line in lines if "0." in line]
    assert len(places) == 3
    assert places[0] == [str(farthest["layer"]), str(farthest["head"])]
    assert "4 of 1,440 problems did not converge: encoder self 2, cross 2" in text


@pytest.mark.parametrize("shape", [{"encoder_self": (6, 12)}, {"decoder_self": (24, 16), "cross": (24, 16)}])
def test_the_terminal_table_fits_eighty_columns_unabridged(shape: dict[Kind, tuple[int, int]]) -> None:
    table = terminal_table(sample_report(shape, queries=3))
    text = shown(table)
    assert max(map(len, text.splitlines())) <= 80
    assert_unabridged(table)


def far(document: int, position: int, leaves: str, variation: float) -> HeadExample:
    key = HeadKey("encoder_self", 1, 1)
    words = f"w{position}", (), f"sentence {document}"
    return HeadExample(
        key, variation, 0.1, document, 1, position, ("rest", leaves, "rest"), *words, None, None
    )


def test_the_queries_shown_are_of_different_sentences_patterns_and_places() -> None:
    kept = [far(1, 1, "first", 0.9), far(1, 2, "rest", 0.8), far(2, 3, "first", 0.7), far(3, 4, "rest", 0.6)]
    assert shown_queries(kept) == [kept[0], kept[2], kept[3]]
    assert shown_queries(kept[:2]) == kept[:2]
    assert shown_queries([kept[0], far(2, 1, "rest", 0.5)]) == [kept[0]]
    assert len(shown_queries([far(i, i, f"p{i}", 1 / i) for i in range(1, 9)])) == 4


def test_histograms_of_opened_heads_count_every_query_on_an_axis_that_fits() -> None:
    report = sample_report({"encoder_self": (2, 3)}, queries=40, twin=True)
    for head, histograms in zip(report.statistics.heads, opened_data(report)["histograms"], strict=True):
        for axis, (upper, counts, twins) in zip(AXES, histograms, strict=True):
            assert sum(counts) == sum(twins) == 40
            most, high = (head[f"{axis.metric}_{name}"] or 0.0 for name in ("max", "p95"))
            assert high <= upper < 2.6 * most


def test_a_page_of_many_heads_keeps_the_farthest_open() -> None:
    report = sample_report({"decoder_self": (3, 7)}, queries=4)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fenchel.auditing.report.plots.MOST_QUERIES", 10)
        patched.setattr("fenchel.auditing.report.plots.MOST_MATRICES", 5)
        data = opened_data(report)
    far_heads = sorted(range(21), key=lambda i: -(report.statistics.heads[i]["total_variation_mean"] or 0.0))
    assert {i for i, some in enumerate(data["queries"]) if some is not None} == set(far_heads[:10])
    assert {i for i, some in enumerate(data["matrices"]) if some is not None} == set(far_heads[:5])
    assert all(len(some) == 1 for some in data["queries"] if some)


def test_points_lie_where_their_numbers_are() -> None:
    report = sample_report({"encoder_self": (2, 3)})
    both = scatters(effects_of(report))
    assert [plot["metric"] for plot in both] == ["total_variation", "relative_deviation"]
    for plot in both:
        assert len(plot["points"]) == 6
        for point in plot["points"]:
            assert point["x"] / 100 * plot["widest"] == pytest.approx(point["deviation"], abs=1e-3)
            assert point["y"] / 100 * plot["highest"] == pytest.approx(point["effect"], abs=1e-4)
            assert (point["low"] or 0) < point["y"] < (point["high"] or 0) <= 100
