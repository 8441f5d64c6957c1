import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.examples import HeadExample, TemplateWeight
from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.auditing.report import notebook_html, render_html, summary_sentence, terminal_table
from fenchel.auditing.report.findings import headline
from fenchel.auditing.report.html import command
from fenchel.auditing.report.plots import (
    AXES,
    farthest_heads,
    opened_data,
    outline,
    scatters,
    shown_queries,
)
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import decimal, percent, short
from fenchel.errors import InputError
from tests.auditing.report.samples import HOSTILE, effects_of, manifest, sample_report
from tests.auditing.small_audits import known_statistics
from tests.pages import assert_unabridged, shown

T5_SHAPE: dict[Kind, tuple[int, int]] = {"encoder_self": (2, 3), "decoder_self": (2, 3), "cross": (2, 3)}


class Page(HTMLParser):
    """What a browser would find in a page, as far as safety and content go."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.dangers: list[str] = []
        self.cells: dict[tuple[str, int], tuple[str, str]] = {}
        self.rows: list[list[str]] = []
        self.scripts = 0
        self._metric = ""
        self._cell: tuple[str, int] | None = None
        self._style = ""
        self._table = ""
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag in {"img", "iframe", "object", "embed", "video", "audio", "form", "base"}:
            self.dangers.append(tag)
        self.dangers += [name for name in found if name.startswith("on") or name in {"src", "srcdoc"}]
        if "href" in found and not found["href"].startswith(("#", "data:,")):
            self.dangers.append(found["href"])
        self.scripts += tag == "script"
        if tag == "table":
            self._table, self._metric = found.get("id", ""), found.get("data-metric", "")
        if tag == "td" and "data-row" in found:
            self._cell, self._style = (self._metric, int(found["data-row"])), found.get("class", "")
        if tag == "tr" and self._table == "heads-table":
            self.rows.append([])
        self._in_cell = tag == "td"

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self.cells[self._cell] = (self._style, data)
        if self._in_cell and self._table == "heads-table":
            self.rows[-1].append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._cell, self._in_cell = None, False
        if tag == "table":
            self._table = ""


def embedded(html: str) -> dict:
    match: Any = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(match.group(1))


def addresses(html: str) -> list[str]:
    return re.findall(
        r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}|url\((?!data:)|@import|sourceMappingURL", html
    )


def test_a_page_needs_no_network() -> None:
    html = render_html(sample_report({"encoder_self": (2, 3)}))
    assert addresses(html) == []
    assert Page(html).dangers == []
    assert "default-src 'none'" in html
    assert re.search(r"script-src (&#39;|')sha256-[\w+/]{43}=(&#39;|')", html)


def test_every_text_is_escaped() -> None:
    said: dict[str, Any] = dict.fromkeys(("token", "model", "texts", "convention", "dtype"), HOSTILE)
    html = render_html(sample_report({"encoder_self": (1, 2)}, **said))
    page = Page(html)
    assert page.dangers == []
    assert page.scripts == 2
    assert HOSTILE not in html
    assert html.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;") > 10
    assert embedded(html)["rows"]


def test_cells_and_rows_hold_the_recorded_numbers() -> None:
    report = sample_report(T5_SHAPE)
    html = render_html(report)
    page = Page(html)
    data = embedded(html)
    keys = report.statistics.keys()
    assert len(page.cells) == 4 * len(keys)
    for index, key in enumerate(keys):
        for metric in ("relative_deviation", "total_variation", "mean_error", "certificate"):
            mean = report.statistics.mean(metric, *key)
            assert page.cells[metric, index][1] == short(mean)
            place = data["columns"].index(f"{metric}_mean")
            assert data["rows"][index][place] == pytest.approx(mean, rel=1e-5)
    means = [report.statistics.mean("total_variation", *key) for key in keys]
    strongest = [index for index in range(len(keys)) if page.cells["total_variation", index][0] == "q23"]
    assert max(range(len(keys)), key=means.__getitem__) in strongest
    assert all(means[index] >= max(means) * 23 / 24 for index in strongest)
    rows = [row for row in page.rows if row]
    assert [row[1:3] for row in rows] == [[str(key.layer), str(key.head)] for key in keys]
    assert rows[4][3] == decimal(report.statistics.mean("relative_deviation", *keys[4]))


def test_an_unbounded_certificate_is_shown_as_such() -> None:
    report = sample_report({"encoder_self": (2, 2)}, unbounded=True)
    html = render_html(report)
    page, data = Page(html), embedded(html)
    # The mean of that head is infinite, so the map shows medians; the table shows the mean.
    median = report.statistics.median("certificate", "encoder_self", 1, 1)
    assert page.cells["certificate", 0][1] == short(median)
    assert page.rows[1][6] == "∞"
    assert data["rows"][0][data["columns"].index("certificate_mean")] == "inf"


def test_what_did_not_converge_is_said_first() -> None:
    clean, missed = (
        render_html(sample_report({"encoder_self": (2, 2)}, queries=10, missed=n)) for n in (0, 3)
    )
    assert 'id="not-converged"' not in clean
    assert "All 40 exact solutions are certified" in clean
    assert "37 of 40 exact solutions are certified, 3 are not" in missed
    assert "(7.5\u202f%)" in missed
    assert missed.index("3 of 40 problems did not converge") < missed.index('id="summary"')
    assert missed.count('class="missed"') == 1


def test_many_heads_are_aggregated_and_the_page_stays_small() -> None:
    report = sample_report({"decoder_self": (21, 20)}, queries=4)
    html = render_html(report)
    assert "every tick is the mean of one head" in html
    assert 'class="panels grid"' not in html
    assert len(Page(html).cells) == 4 * 420
    assert len([row for row in Page(html).rows if row]) == 200
    assert len(embedded(html)["rows"]) == 420
    assert len(html) < 1_500_000


@pytest.mark.parametrize(
    ("shape", "options", "said", "unsaid"),
    [
        ({"encoder_self": (1, 1)}, {"queries": 1}, ["Over 1 query in 1 head,", "1 layer × 1 head"], ["Means by kind"]),
        (T5_SHAPE, {}, ["Means by kind", "<h3>Cross-attention</h3>"], ["of the text only"]),
        ({"cross": (1, 1)}, {"shard": "2/5"}, ["Shard 2/5 of the text only"], []),
    ],
)  # fmt: skip
def test_a_page_says_what_it_is_of(shape: Any, options: Any, said: list[str], unsaid: list[str]) -> None:
    html = render_html(sample_report(shape, **options))
    assert [text for text in said if text not in html] == [text for text in unsaid if text in html] == []


def test_what_is_missing_or_unbounded_is_said() -> None:
    layers: list[Any] = [
        ("encoder_self", layer, heads, {metric: torch.full((len(heads), 3), value) for metric in METRICS})
        for layer, heads, value in ((1, (1, 2), math.inf), (2, (2,), 0.1))
    ]
    report = AuditReport({"tol": 1e-4}, known_statistics(layers))
    html = render_html(report)
    page = Page(html)
    assert page.cells["relative_deviation", 0] == page.cells["total_variation", 1] == ("unbounded", "∞")
    assert (html.count('class="absent"'), len(page.cells)) == (4, 12)
    assert "No example of this head was recorded" in html
    with pytest.raises(InputError, match="0 heads"):
        render_html(AuditReport({}, AuditStatistics()))


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
