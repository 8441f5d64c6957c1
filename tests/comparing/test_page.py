"""The page of a comparison: what stands in it, and what a browser makes of it."""

from typing import Any

import pytest

from fenchel.auditing.heads import METRICS, HeadKey
from fenchel.comparing import ComparisonReport, compare
from fenchel.comparing.report import path, render_html, trajectories
from fenchel.drawing import STEPS, change_style, signed_short
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


def test_a_map_says_what_changed_and_its_statistic_is_chosen(visit: Any) -> None:
    found = comparison()
    html = render_html(found)
    assert 'id="trajectory"' not in html
    seen = visit(html)
    place = found.keys.index(RAISED)
    head, tooltip = seen.page.locator(cell("total_variation", place)), seen.page.locator("#tooltip")
    change = found.changes[RAISED]["total_variation"]
    assert head.get_attribute("class") == f"more by{STEPS} moved"
    head.hover()
    assert "Encoder self, layer 2, head 3" in tooltip.inner_text()
    assert f"{change.first.median:.3f} → {change.second.median:.3f}" in tooltip.inner_text()
    heads = [seen.page.locator(cell("gap", place)) for place in range(len(found.keys))]
    for statistic, name, moved in (("p50", "median", len(METRICS)), ("mean", "mean", 0)):
        seen.page.select_option("#statistic", statistic)
        values = [getattr(found.changes[key]["gap"], name) for key in found.keys]
        highest = max(map(abs, values))
        for value, one in zip(values, heads, strict=True):
            assert one.text_content() == signed_short(value)
            assert one.get_attribute("class").removesuffix(" moved") == change_style(value, highest)
        assert seen.page.locator("td.moved").count() == moved
    changes = {-2.0: "less by8", -0.1: "less by1", 0.0: "", 0.1: "more by1", 2.0: "more by8", None: "missing"}
    assert [change_style(value, 2.0) for value in changes] == [*changes.values()]


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("count", [2, 5])
def test_hostile_and_long_names_do_nothing_and_nothing_sticks_out(visit: Any, count: int, width: int) -> None:
    name = HOSTILE + "a-" + 60 * "very" + "-long/name"
    seen = visit(render_html(comparison(count, model=name, texts=HOSTILE, torch=HOSTILE)), width=width)
    seen.page.locator(cell("gap", 0)).hover()
    assert seen.page.locator("h1 bdi").first.inner_text() == f"{name} 0"
    assert seen.page.locator("img").count() == 0
    assert seen.overflow() == 0


def test_a_trajectory_has_lines_through_the_medians_and_its_metric_is_chosen(visit: Any) -> None:
    found = comparison(3)
    shown = next(
        one for one in trajectories(found, METRICS) if (one["metric"], one["kind"]) == ("gap", "encoder_self")
    )
    medians = [audit.distribution("gap", "encoder_self", 2).median for audit in found.audits]
    assert shown["panels"][1]["line"] == path(medians, shown["highest"])
    assert shown["highest"] == max(
        audit.distribution("gap", *key).median for audit in found.audits for key in found.keys
    )
    seen = visit(render_html(found))
    for group in ("moved", "trajectory"):
        parts = seen.page.locator(f"[data-choice={group}]:visible")
        assert parts.first.get_attribute("data-metric") == "total_variation"
        seen.page.locator(f"fieldset[data-group={group}]").get_by_text("Error of the mean").click()
        metrics = {parts.nth(place).get_attribute("data-metric") for place in range(parts.count())}
        assert metrics == {"mean_error"}
    first = seen.page.locator("[data-choice=moved]:visible tbody tr").first
    assert first.locator("td").first.inner_text() == "Encoder self-attention, layer 2, head 3"
