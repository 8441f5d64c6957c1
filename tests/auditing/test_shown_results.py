"""What a session in Python and a notebook show of results: one line, a table of pandas, a heat map."""

import math
import sys
from html.parser import HTMLParser

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.report import table
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import SCALE, level
from fenchel.errors import MissingExtraError
from tests.auditing.report.samples import manifest, sample_report


def test_repr_is_one_line_of_what_was_found() -> None:
    report = sample_report({"encoder_self": (2, 3), "cross": (1, 2)}, queries=20, missed=1)
    said = repr(report)
    assert said.startswith(
        "<AuditReport of demo: 8 heads, 160 problems; encoder self: relative deviation 0.0"
    )
    mean = report.summary["kinds"]["cross"]["total_variation_mean"]
    assert (
        f"; cross: relative deviation {report.summary['kinds']['cross']['relative_deviation_mean']:.3f}"
        in said
    )
    assert f"total variation {mean:.3f}" in said
    assert said.endswith("2 not converged>")
    assert "\n" not in said
    assert len(said) < 400
    assert repr(AuditReport(manifest(), AuditStatistics())) == "<AuditReport of demo: 0 heads, 0 problems>"


def test_the_table_of_pandas_holds_the_records() -> None:
    report = sample_report({"encoder_self": (1, 2)}, queries=20, unbounded=True)
    table = report.to_pandas()
    assert list(table.columns) == list(report.statistics.record_keys())
    assert len(table) == 2
    for record, (_, row) in zip(report.heads, table.iterrows(), strict=True):
        for name, value in record.items():
            assert bool(row[name] == (math.inf if value is None else value))
    assert table["certificate_mean"].iloc[0] == math.inf
    assert str(table["queries"].dtype) == "int64"
    assert AuditReport(manifest(), AuditStatistics()).to_pandas().empty


def test_without_pandas_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[hf\]'"):
        sample_report({"cross": (1, 1)}, queries=2).to_pandas()


class Cells(HTMLParser):
    """Title, style and text of every cell that has a colour."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[list[str]] = []
        self.open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.open = tag == "td" and "title" in given
        if self.open:
            self.found.append([str(given["title"]), str(given["style"]), ""])

    def handle_data(self, data: str) -> None:
        if self.open:
            self.found[-1][2] += data

    def handle_endtag(self, tag: str) -> None:
        self.open = False


def test_the_notebook_has_the_heat_map_of_the_report() -> None:
    report = sample_report({"encoder_self": (2, 3)}, queries=30)
    cells = Cells(report._repr_html_()).found
    highest = max(head["total_variation_mean"] for head in report.heads)
    assert len(cells) == 6
    for head, (title, style, text) in zip(report.heads, cells, strict=True):
        value = head["total_variation_mean"]
        assert title == f"layer {head['layer']}, head {head['head']}: {value:.3f}"
        assert text == f"{value:.3f}"
        assert f"background:{SCALE[level(value, highest)]};" in style


def test_many_heads_beside_each_other_have_no_numbers_and_very_many_no_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = Cells(sample_report({"encoder_self": (1, 20)}, queries=3)._repr_html_()).found
    assert len(wide) == 20
    assert {text for _, _, text in wide} == {""}
    monkeypatch.setattr(table, "_MOST_CELLS", 19)
    huge = sample_report({"encoder_self": (1, 20)}, queries=3)._repr_html_()
    assert Cells(huge).found == []
    assert "the map is in report.html" in huge
