import json
import math
import re
from dataclasses import replace
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
from fenchel.auditing.report.plots import farthest_heads, opened_data
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import decimal, percent, short
from fenchel.errors import InputError
from tests.auditing.report.samples import HOSTILE, manifest, sample_report
from tests.auditing.small_audits import known_statistics
from tests.pages import assert_unabridged, shown

T5_SHAPE: dict[Kind, tuple[int, int]] = {"encoder_self": (2, 3), "decoder_self": (2, 3), "cross": (2, 3)}


def cells_of(html: str) -> dict[tuple[str, int], tuple[str, str]]:
    """Class and text of the cells of heat maps, by metric and number of the head."""
    maps = re.findall(r'<table class="heat[^>]* data-metric="(\w+)"(.*?)</table>', html, re.DOTALL)
    cell = re.compile(r'<td class="(\w+)" data-row="(\d+)">([^<]*)<')
    return {
        (metric, int(row)): (style, text) for metric, one in maps for style, row, text in cell.findall(one)
    }


def rows_of(html: str) -> list[list[str]]:
    """The texts of the rows of the table of heads."""
    table = html.partition('id="heads-table"')[2].partition("</table>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr[^>]*><td.*?</tr>", table)]


def embedded(html: str) -> dict:
    match: Any = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(match.group(1))


def test_a_page_needs_no_network() -> None:
    html = render_html(sample_report({"encoder_self": (2, 3)}))
    elsewhere = r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}|url\((?!data:)|@import|sourceMappingURL"
    assert re.findall(elsewhere, html) == []
    assert "default-src 'none'" in html
    assert re.search(r"script-src (&#39;|')sha256-[\w+/]{43}=(&#39;|')", html)


def test_every_text_is_escaped() -> None:
    said: dict[str, Any] = dict.fromkeys(("token", "model", "texts", "convention", "dtype"), HOSTILE)
    html = render_html(sample_report({"encoder_self": (1, 2)}, **said))
    assert html.count("<script") == 2
    assert HOSTILE not in html
    assert html.count("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;") > 10
    assert embedded(html)["rows"]


def test_cells_and_rows_hold_the_recorded_numbers() -> None:
    report = sample_report(T5_SHAPE, unbounded=True)
    html = render_html(report)
    cells, rows, data = cells_of(html), rows_of(html), embedded(html)
    keys = report.statistics.keys()
    assert len(cells) == 4 * len(keys)
    assert "Means by kind" in html
    for metric in ("relative_deviation", "total_variation", "mean_error", "certificate"):
        # The mean of a certificate is infinite, so the map shows medians and the table the mean.
        shown = report.statistics.median if metric == "certificate" else report.statistics.mean
        values = [shown(metric, *key) for key in keys]
        place = data["columns"].index(f"{metric}_{'p50' if metric == 'certificate' else 'mean'}")
        for index, value in enumerate(values):
            level = min(23, int(24 * value / max(values)))
            assert cells[metric, index] == (f"q{level}", short(value))
            assert data["rows"][index][place] == pytest.approx(value, rel=1e-5)
    assert [row[1:3] for row in rows] == [[str(key.layer), str(key.head)] for key in keys]
    assert rows[4][3] == decimal(report.statistics.mean("relative_deviation", *keys[4]))
    assert rows[0][7] == "∞"
    assert data["rows"][0][data["columns"].index("certificate_mean")] == "inf"


def test_what_is_missing_or_unbounded_is_said() -> None:
    layers: list[Any] = [
        ("encoder_self", layer, heads, {metric: torch.full((len(heads), 3), value) for metric in METRICS})
        for layer, heads, value in ((1, (1, 2), math.inf), (2, (2,), 0.1))
    ]
    html = render_html(AuditReport({"tol": 1e-4, "shard": "2/5"}, known_statistics(layers)))
    cells = cells_of(html)
    assert cells["relative_deviation", 0] == cells["total_variation", 1] == ("unbounded", "∞")
    assert (html.count('class="absent"'), len(cells)) == (4, 12)
    assert "No example of this head was recorded" in html
    assert "Shard 2/5 of the text only" in html
    with pytest.raises(InputError, match="0 heads"):
        render_html(AuditReport({}, AuditStatistics()))


def test_many_heads_are_aggregated_and_the_page_stays_small() -> None:
    report = sample_report({"decoder_self": (21, 20)}, queries=4)
    html = render_html(report)
    assert "every tick is the mean of one head" in html
    assert 'class="panels grid"' not in html
    assert len(cells_of(html)) == 4 * 420
    assert len(rows_of(html)) == 200
    assert len(embedded(html)["rows"]) == 420
    assert len(html) < 1_500_000


def test_sentences_have_the_numbers_of_the_audit() -> None:
    clean, missed = (sample_report({"encoder_self": (2, 3)}, queries=50, missed=n) for n in (0, 3))
    said = summary_sentence(clean)
    whole = " ".join(headline(clean))
    for metric, text in (("total_variation", said), ("relative_deviation", whole)):
        mean = sum(clean.statistics.mean(metric, "encoder_self", layer) for layer in (1, 2)) / 2
        assert percent(mean) in text
    assert f"output before the value map is off by {percent(clean.statistics.mean('mean_error'))}" in said
    keys = replace(clean, manifest=clean.manifest | {"space": "key"})
    assert "and the mean of a head's keys is off by" in " ".join(headline(keys))
    assert "All 300 exact solutions are certified" in said
    assert (
        "297 of 300 exact solutions are certified, 3 are not: a certified dual point is within"
        in summary_sentence(missed)
    )
    html = render_html(missed)
    assert html.index("3 of 300 problems did not converge") < html.index('id="summary"')
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
            *key, 0.7, math.inf, 1, 1, 2, ("", "", ""), "early", weights, "early and late", None, None
        ),
    )
    (card,) = farthest_heads(report)
    assert card["reasons"] == ["largest total variation", "largest error of the mean"]
    html = render_html(report)
    assert "in 1 head," in html
    _, _, body = html.partition('<table class="weights">')
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
    assert all(sum(counts) == 4 for head in data["histograms"] for _, counts, _ in head)
