"""The page in a real browser: what a pointer, a keyboard and a narrow screen make of it."""

from typing import Any

import pytest

from fenchel.arguments import Kind
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import HeadKey
from fenchel.auditing.report import render_html
from fenchel.drawing import decimal, short
from tests.auditing.report.samples import HOSTILE, sample_report
from tests.auditing.report.test_html import Page as Parsed
from tests.pages import cell

pytestmark = pytest.mark.browser

SHAPE: dict[Kind, tuple[int, int]] = {"encoder_self": (3, 4), "cross": (2, 4)}


@pytest.fixture(scope="module")
def report() -> AuditReport:
    return sample_report(SHAPE, queries=40)


def test_a_long_table_is_shown_in_full_when_asked(visit: Any) -> None:
    seen = visit(render_html(sample_report({"decoder_self": (15, 14)}, queries=2)))
    assert len(seen.column(0)) == 200
    seen.page.get_by_role("button", name="Show all 210").click()
    assert len(seen.column(0)) == 210


def test_script_and_server_write_the_same_numbers_and_colours(visit: Any) -> None:
    """Infinity among them, whose mean and colour are those that need care."""
    html = render_html(sample_report(SHAPE, queries=40, unbounded=True, missed=1))
    parsed = Parsed(html)
    seen = visit(html)
    rows = seen.page.locator("#heads-table tbody tr")
    shown = [rows.nth(i).locator("td").all_text_contents() for i in range(rows.count())]
    assert shown == [row for row in parsed.rows if row]
    seen.page.select_option("#heat-statistic", "max")
    seen.page.select_option("#heat-statistic", "")
    for (metric, index), (style, text) in parsed.cells.items():
        found = seen.page.locator(cell(metric, index))
        assert (found.get_attribute("class"), found.text_content()) == (style, text)


def test_a_heat_map_is_read_by_pointer_and_keyboard(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    key = report.statistics.keys()[6]
    assert key == HeadKey("encoder_self", 2, 3)
    tooltip = seen.page.locator("#tooltip")
    assert not tooltip.is_visible()
    seen.page.locator(cell("total_variation", 6)).hover()
    *words, _, last = tooltip.inner_text().split("\n")
    assert last == "Click or press Enter to open the head"
    assert words[:2] == ["Encoder self-attention, layer 2, head 3", "Total variation"]
    record: Any = report.statistics.record(key)
    names = {"mean": "mean", "median": "p50", "95th percentile": "p95", "maximum": "max"}
    expected = {name: decimal(record[f"total_variation_{of}"]) for name, of in names.items()}
    assert dict(zip(words[2::2], words[3::2], strict=True)) == expected | {"queries": "40"}
    seen.page.mouse.move(5, 5)
    assert not tooltip.is_visible()
    seen.page.locator("#heat-statistic").focus()
    for pressed, place in (
        ("Tab", "layer 1, head 1"),
        ("ArrowRight", "layer 1, head 2"),
        ("ArrowDown", "layer 2, head 2"),
        ("End", "layer 2, head 4"),
        ("ArrowUp", "layer 1, head 4"),
        ("Home", "layer 1, head 1"),
    ):
        seen.page.keyboard.press(pressed)
        assert place in tooltip.inner_text()
    seen.page.keyboard.press("Escape")
    assert not tooltip.is_visible()


def test_the_table_is_sorted_and_filtered_and_statistics_are_chosen(visit: Any) -> None:
    """Equals keep their order, and infinity is above all numbers."""
    report = sample_report(SHAPE, queries=40, unbounded=True)
    seen = visit(render_html(report))
    header = seen.page.locator("#heads-table th[data-metric=certificate]")
    for press, order, first in (
        (header.locator("button").click, "descending", 0),
        (lambda: header.locator("button").press("Enter"), "ascending", -1),
    ):
        press()
        assert header.get_attribute("aria-sort") == order
        assert seen.column(7)[first] == "∞"
        shown = [float(one.replace("∞", "inf")) for one in seen.column(7)]
        assert shown == sorted(shown, reverse=order == "descending")
    seen.page.locator("#heads-table th[data-column=head] button").click()
    seen.page.locator("#heads-table th[data-column=layer] button").click()
    assert header.get_attribute("aria-sort") == "none"
    places = list(zip(seen.column(1), seen.column(2), strict=True))
    assert places == sorted(places)

    key = report.statistics.keys()[0]
    seen.page.select_option("#heat-statistic", "max")
    assert seen.page.locator(cell("mean_error", 0)).text_content() == short(
        report.statistics.of(*key)["mean_error_max"]
    )
    seen.page.select_option("#table-statistic", "p95")
    assert decimal(report.statistics.of(*key)["certificate_p95"]) in seen.column(7)
    panels = seen.page.locator(".panels.layers:visible")
    assert panels.first.get_attribute("data-metric") == "relative_deviation"
    seen.page.locator("fieldset[data-group=by-layer]").get_by_text("Error of the mean").click()
    assert {panels.nth(i).get_attribute("data-metric") for i in range(panels.count())} == {"mean_error"}

    seen.page.select_option("#filter-kind", label="Cross-attention")
    seen.page.select_option("#filter-layer", "2")
    assert (seen.column(0), seen.column(1)) == (["Cross"] * 4, ["2"] * 4)
    assert seen.page.locator("#shown").inner_text() == "4 of 20 heads shown"


@pytest.mark.parametrize("width", [1280, 400])
def test_hostile_and_long_names_do_nothing_and_nothing_sticks_out(visit: Any, width: int) -> None:
    shape: dict[Kind, tuple[int, int]] = {"encoder_self": (2, 12), "decoder_self": (2, 8), "cross": (1, 1)}
    said: dict[str, Any] = dict.fromkeys(("token", "model", "texts"), HOSTILE + 60 * "very")
    report = sample_report(shape, queries=10, unbounded=True, missed=2, twin=True, moved=True, **said)
    seen = visit(render_html(report), width=width)
    seen.page.locator(cell("mean_error", 0)).hover()
    assert seen.page.locator("h1").inner_text() == said["model"]
    assert seen.page.locator(".weights code").first.inner_text() == said["model"]
    assert seen.overflow() == 0
    seen.page.evaluate("location.hash = '#L1H1'")
    assert seen.page.locator(".sentence .token").first.inner_text().startswith(said["model"])
    seen.page.locator("table.attention tbody td").first.hover()
    assert HOSTILE in seen.page.locator(".readout").inner_text()
    assert seen.overflow() == 0
    assert seen.page.locator("img").count() == 0


def test_the_watch_sees_what_sticks_out_errors_requests_and_dialogs(visit: Any) -> None:
    seen = visit(
        "<!doctype html><link rel=icon href='data:,'><div style='width:2000px'>wide</div>"
        "<img src='http://127.0.0.1:9/x.png'>"
        "<script>alert('a'); console.error('b'); throw new Error('c')</script>"
    )
    seen.page.wait_for_load_state()
    kinds = {trouble.split(":")[0] for trouble in seen.troubles}
    assert kinds == {"console", "error", "request", "dialog"}
    seen.troubles.clear()
    assert seen.overflow() > 0


def test_the_page_is_readable_without_scripts_and_dark_but_not_on_paper(
    visit: Any, report: AuditReport
) -> None:
    html, ink = render_html(report), "getComputedStyle(document.body).color"
    light = visit(html, java_script_enabled=False, color_scheme="light")
    assert not light.page.locator("#heat-statistic").is_visible()
    assert light.page.locator("#heads-table tbody tr").count() == 20
    assert light.page.locator(cell("certificate", 0)).is_visible()
    assert not light.page.locator("#opened").is_visible()
    dark = visit(html, color_scheme="dark")
    assert light.page.evaluate(ink) != dark.page.evaluate(ink)
    dark.page.emulate_media(media="print", color_scheme="dark")
    assert light.page.evaluate(ink) == dark.page.evaluate(ink)
