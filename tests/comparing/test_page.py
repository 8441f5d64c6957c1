"""The page of a comparison: what stands in it, and what a browser makes of it."""

from typing import Any

import pytest

from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.comparing import ComparisonReport, compare
from fenchel.comparing.report import STEPS, path, render_html, signed_short, style, trajectories
from tests.auditing.report.samples import HOSTILE
from tests.comparing.small_comparisons import known_audit, known_values
from tests.pages import cell

RAISED = HeadKey("encoder_self", 2, 3)

pytestmark = pytest.mark.browser


def comparison(count: int = 2, **changes: Any) -> ComparisonReport:
    audits = [
        known_audit(known_values(seed, {RAISED: 1.0 + seed}), **(changes if seed else {}))
        for seed in range(count)
    ]
    return compare(*audits, names=[changes.get("model", "audit") + f" {seed}" for seed in range(count)])


def test_a_cell_says_what_the_head_did(visit: Any) -> None:
    found = comparison()
    seen = visit(render_html(found))
    place = found.keys.index(RAISED)
    head = seen.page.locator(cell("total_variation", place))
    change = found.changes[RAISED]["total_variation"]
    assert head.text_content() == signed_short(change.median)
    assert head.get_attribute("class") == f"more by{STEPS} moved"
    head.hover()
    tooltip = seen.page.locator("#tooltip")
    assert "Encoder self, layer 2, head 3" in tooltip.inner_text()
    assert f"{change.first.median:.3f} → {change.second.median:.3f}" in tooltip.inner_text()
    seen.page.keyboard.press("Escape")
    seen.page.mouse.move(1, 1)
    assert not tooltip.is_visible()
    assert seen.troubles == []


def test_medians_and_means_can_be_chosen(visit: Any) -> None:
    found = comparison()
    seen = visit(render_html(found))

    def shown() -> list[tuple[str, str]]:
        return [
            (one.text_content(), one.get_attribute("class").removesuffix(" moved"))
            for one in (seen.page.locator(cell("gap", place)) for place in range(len(found.keys)))
        ]

    def expected(statistic: str) -> list[tuple[str, str]]:
        values = [
            getattr(found.changes[key]["gap"], "mean" if statistic == "mean" else "median")
            for key in found.keys
        ]
        highest = max(abs(value or 0.0) for value in values)
        return [(signed_short(value), style(value, highest)) for value in values]

    assert shown() == expected("p50")
    seen.page.select_option("#statistic", "mean")
    assert shown() == expected("mean") != expected("p50")
    assert seen.page.locator("td.moved").count() == 0
    seen.page.select_option("#statistic", "p50")
    assert shown() == expected("p50")
    assert seen.page.locator("td.moved").count() == len(METRICS)


def test_the_keyboard_walks_a_map(visit: Any) -> None:
    seen = visit(render_html(comparison()))
    seen.page.locator("#statistic").focus()
    tooltip = seen.page.locator("#tooltip")
    for key, place in (
        ("Tab", "layer 1, head 1"),
        ("ArrowDown", "layer 2, head 1"),
        ("End", "layer 2, head 3"),
    ):
        seen.page.keyboard.press(key)
        assert place in tooltip.inner_text()
    assert seen.troubles == []


def test_the_metric_of_a_table_can_be_chosen(visit: Any) -> None:
    seen = visit(render_html(comparison(3)))
    for group in ("moved", "trajectory"):
        parts = seen.page.locator(f"[data-choice={group}]:visible")
        assert parts.first.get_attribute("data-metric") == "total_variation"
        seen.page.locator(f"fieldset[data-group={group}]").get_by_text("Output error").click()
        metrics = {parts.nth(place).get_attribute("data-metric") for place in range(parts.count())}
        assert metrics == {"mean_error"}
    first = seen.page.locator("[data-choice=moved]:visible tbody tr").first
    assert first.locator("td").first.inner_text() == "Encoder self-attention, layer 2, head 3"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("count", [2, 5])
def test_nothing_sticks_out_of_the_page(visit: Any, count: int, width: int) -> None:
    seen = visit(render_html(comparison(count, model="a-" + 60 * "very" + "-long/name")), width=width)
    assert seen.overflow() == 0
    assert seen.troubles == []


def test_hostile_names_do_nothing(visit: Any) -> None:
    seen = visit(render_html(comparison(3, model=HOSTILE, texts=HOSTILE, torch=HOSTILE)))
    seen.page.locator(cell("gap", 0)).hover()
    assert seen.page.locator("h1 bdi").first.inner_text() == f"{HOSTILE} 0"
    assert seen.page.locator("img").count() == 0
    assert seen.troubles == []


def test_only_a_trajectory_is_drawn_as_one() -> None:
    assert 'id="trajectory"' not in render_html(comparison(2))
    assert 'id="trajectory"' in render_html(comparison(3))


def test_lines_go_through_the_medians() -> None:
    found = comparison(3)
    shown = next(
        one for one in trajectories(found, METRICS) if (one["metric"], one["kind"]) == ("gap", "encoder_self")
    )
    medians = [audit.distribution("gap", "encoder_self", 2).median for audit in found.audits]
    assert shown["panels"][1]["line"] == path(medians, shown["highest"])
    assert shown["highest"] == max(
        audit.distribution("gap", *key).median for audit in found.audits for key in found.keys
    )
    assert path([0.0, 1.0], 1.0) == "M0 100L100 0"


def test_falls_and_rises_have_other_classes_of_equal_strength() -> None:
    assert [style(value, 2.0) for value in (-2.0, -0.1, 0.0, 0.1, 2.0, None)] == [
        "less by8",
        "less by1",
        "",
        "more by1",
        "more by8",
        "missing",
    ]
