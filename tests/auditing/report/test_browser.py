"""The page in a real browser: what a pointer, a keyboard and a narrow screen make of it."""

from itertools import pairwise
from typing import Any

import pytest

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import HeadKey, Kind
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


def falling(numbers: list[str]) -> bool:
    return all(float(before) >= float(after) for before, after in pairwise(numbers))


def test_pointing_at_a_cell_shows_its_numbers(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    key = report.statistics.keys()[6]
    assert key == HeadKey("encoder_self", 2, 3)
    tooltip = seen.page.locator("#tooltip")
    assert not tooltip.is_visible()
    seen.page.locator(cell("total_variation", 6)).hover()
    *words, _, last = tooltip.inner_text().split("\n")
    assert last == "Click or press Enter to open the head"
    assert words[:2] == ["Encoder self-attention, layer 2, head 3", "Total variation"]
    record = report.statistics.record(key)
    expected = {
        "mean": decimal(record["total_variation_mean"]),  # pyright: ignore[reportArgumentType]
        "median": decimal(record["total_variation_p50"]),  # pyright: ignore[reportArgumentType]
        "95th percentile": decimal(record["total_variation_p95"]),  # pyright: ignore[reportArgumentType]
        "maximum": decimal(record["total_variation_max"]),  # pyright: ignore[reportArgumentType]
        "queries": "40",
    }
    assert dict(zip(words[2::2], words[3::2], strict=True)) == expected
    seen.page.mouse.move(5, 5)
    assert not tooltip.is_visible()
    assert seen.troubles == []


def test_a_heat_map_is_read_with_the_keyboard(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    seen.page.locator("#heat-statistic").focus()
    seen.page.keyboard.press("Tab")
    tooltip = seen.page.locator("#tooltip")
    for key, place in (
        (None, "layer 1, head 1"),
        ("ArrowRight", "layer 1, head 2"),
        ("ArrowDown", "layer 2, head 2"),
        ("End", "layer 2, head 4"),
        ("ArrowRight", "layer 2, head 4"),
        ("ArrowUp", "layer 1, head 4"),
        ("Home", "layer 1, head 1"),
    ):
        if key:
            seen.page.keyboard.press(key)
        assert place in tooltip.inner_text()
    assert seen.page.locator("td[aria-describedby=tooltip]").count() == 1
    seen.page.keyboard.press("Escape")
    assert not tooltip.is_visible()
    assert seen.troubles == []


def test_the_table_sorts_by_number_and_keeps_the_order_of_equals(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    header = seen.page.locator("#heads-table th[data-metric=mean_error]")
    assert not falling(seen.column(6))
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert falling(seen.column(6))
    assert sorted(seen.column(6)) == sorted(
        decimal(report.statistics.mean("mean_error", *key))
        for key in report.statistics.keys()  # noqa: SIM118
    )
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert falling(seen.column(6)[::-1])

    seen.page.locator("#heads-table th[data-column=head] button").click()
    seen.page.locator("#heads-table th[data-column=layer] button").click()
    assert header.get_attribute("aria-sort") == "none"
    places = list(zip(seen.column(1), seen.column(2), strict=True))
    assert places == sorted(places)
    assert seen.troubles == []


def test_infinity_sorts_above_all_numbers(visit: Any) -> None:
    seen = visit(render_html(sample_report({"encoder_self": (2, 3)}, unbounded=True)))
    button = seen.page.locator("#heads-table th[data-metric=certificate] button")
    button.click()
    assert seen.column(6)[0] == "∞"
    button.click()
    assert seen.column(6)[-1] == "∞"


def test_the_table_is_filtered(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    seen.page.select_option("#filter-kind", label="Cross-attention")
    seen.page.select_option("#filter-layer", "2")
    assert seen.column(0) == ["Cross"] * 4
    assert seen.column(1) == ["2"] * 4
    assert seen.page.locator("#shown").inner_text() == "4 of 20 heads shown"


def test_a_long_table_is_shown_in_full_when_asked(visit: Any) -> None:
    seen = visit(render_html(sample_report({"decoder_self": (15, 14)}, queries=2)))
    assert len(seen.column(0)) == 200
    seen.page.get_by_role("button", name="Show all 210").click()
    assert len(seen.column(0)) == 210
    assert seen.troubles == []


def test_statistics_and_metrics_can_be_chosen(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report))
    key = report.statistics.keys()[0]
    seen.page.select_option("#heat-statistic", "max")
    assert seen.page.locator(cell("mean_error", 0)).text_content() == short(
        report.statistics.of(*key)["mean_error_max"]
    )
    seen.page.select_option("#table-statistic", "p95")
    assert seen.column(6)[0] == decimal(report.statistics.quantile("mean_error", 0.95, *key))
    panels = seen.page.locator(".panels.layers:visible")
    assert panels.first.get_attribute("data-metric") == "relative_deviation"
    seen.page.locator("fieldset[data-group=by-layer]").get_by_text("Output error").click()
    assert {panels.nth(i).get_attribute("data-metric") for i in range(panels.count())} == {"mean_error"}
    assert seen.troubles == []


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


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_sticks_out_of_the_page(visit: Any, width: int) -> None:
    shape: dict[Kind, tuple[int, int]] = {"encoder_self": (2, 12), "decoder_self": (2, 8), "cross": (1, 1)}
    model = "a-" + 60 * "very" + "-long/name"
    report = sample_report(shape, queries=10, unbounded=True, missed=2, model=model)
    seen = visit(render_html(report), width=width)
    assert seen.overflow() == 0
    assert seen.troubles == []


def test_the_overflow_check_sees_what_sticks_out(visit: Any) -> None:
    assert visit("<!doctype html><div style='width:2000px'>wide</div>").overflow() > 0


def test_hostile_names_and_tokens_do_nothing(visit: Any) -> None:
    report = sample_report({"encoder_self": (1, 2)}, token=HOSTILE, model=HOSTILE, texts=HOSTILE)
    seen = visit(render_html(report))
    seen.page.locator(cell("mean_error", 0)).hover()
    assert seen.page.locator("h1").inner_text() == HOSTILE
    assert seen.page.locator(".weights code").first.inner_text() == HOSTILE
    assert seen.page.locator("img").count() == 0
    assert seen.troubles == []


def test_the_watch_sees_errors_requests_and_dialogs(visit: Any) -> None:
    seen = visit(
        "<!doctype html><link rel=icon href='data:,'><img src='http://127.0.0.1:9/x.png'>"
        "<script>alert('a'); console.error('b'); throw new Error('c')</script>"
    )
    seen.page.wait_for_load_state()
    kinds = {trouble.split(":")[0] for trouble in seen.troubles}
    assert kinds == {"console", "error", "request", "dialog"}


def test_the_page_is_readable_without_scripts(visit: Any, report: AuditReport) -> None:
    seen = visit(render_html(report), java_script_enabled=False)
    assert not seen.page.locator("#heat-statistic").is_visible()
    assert seen.page.locator("#heads-table tbody tr").count() == 20
    assert seen.page.locator(cell("certificate", 0)).is_visible()


def test_the_page_follows_a_dark_screen_but_not_onto_paper(visit: Any, report: AuditReport) -> None:
    html = render_html(report)
    ink = "getComputedStyle(document.body).color"
    light, dark = (visit(html, color_scheme=scheme) for scheme in ("light", "dark"))
    assert light.page.evaluate(ink) != dark.page.evaluate(ink)
    dark.page.emulate_media(media="print", color_scheme="dark")
    assert light.page.evaluate(ink) == dark.page.evaluate(ink)
