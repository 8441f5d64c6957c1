import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import METRICS
from fenchel.auditing.report import render_html
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import decimal, short
from fenchel.errors import InputError
from tests.auditing.report.samples import HOSTILE, sample_report
from tests.auditing.small_audits import known_statistics

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
    assert report.statistics.mean("certificate", "encoder_self", 1, 1) == math.inf
    html = render_html(report)
    page = Page(html)
    # The mean of that head is infinite, so the map shows medians; the table shows the mean.
    assert page.cells["certificate", 0][1] == short(
        report.statistics.median("certificate", "encoder_self", 1, 1)
    )
    assert page.rows[1][6] == "∞"
    place = embedded(html)["columns"].index("certificate_mean")
    assert embedded(html)["rows"][0][place] == "inf"


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
