"""``swap.html`` and docs/swap.md: their numbers are those of swaps, and the page runs nothing."""

import re
from dataclasses import replace
from typing import Any

import pytest

from fenchel.auditing.heads import KIND_NAMES, HeadKey, head_name
from fenchel.drawing import change_style, decimal, signed, signed_short
from fenchel.swap import SwapReport
from fenchel.swap.report import head_maps, render_html, stacks, terminal_table
from tests.auditing.report.samples import HOSTILE
from tests.auditing.small_audits import small_audit, some_texts
from tests.examples.test_recorded_pages import compare, numbers, recorded, table
from tests.pages import ROOT, page, run_blocks, shown, text_of
from tests.swap.small_swaps import SCORED, language_model, small_swap


def test_every_number_of_a_condition_is_there(masked: SwapReport) -> None:
    sentences = small_swap("bert", pairs=SCORED, estimators=["exact"])
    assert head_maps(sentences) == []
    for report in (masked, sentences):
        assert "modules" not in report.manifest  # with one kind of attention, numbers of layers are enough
        html = render_html(report).replace("</td>", " ")
        rows = [text_of(row).split() for row in re.findall(r"<tr.*?</tr>", html, flags=re.DOTALL)]
        quality = report.results["quality"]
        for record in report.conditions:
            if record["where"] != "model" or record["estimator"] == "model":
                continue
            called = (
                ["α", "=", f"{record['alpha']:g}"] if record["control"] else record["estimator"].split("_")
            )
            change, low, high = (
                signed(record[f"{quality}_difference{end}"]) for end in ("", "_low", "_high")
            )
            assert [*called, decimal(record[quality]), change, f"[{low},", f"{high}]"] in rows
            change, low, high = (decimal(record[f"hidden_change{end}"]) for end in ("", "_low", "_high"))
            assert [*called, change, f"[{low},", f"{high}]"] in rows


def test_bars_and_maps_are_the_layers_and_heads_of_the_swap(masked: SwapReport) -> None:
    [stack] = stacks(masked)
    for layer in stack["layers"]:
        found = {one["estimator"]: one for one in masked.layers if one["layer"] == layer["layer"]}
        assert layer["bars"][0][:2] == ("exact", found["exact"]["hidden_change"])
        assert layer["alone"]["exact"] == masked.condition("exact", layer=layer["layer"])["hidden_change"]
    assert [estimator for estimator, _, _ in head_maps(masked)] == ["second_order", "exact"]
    exact = head_maps(masked)[1][2]
    for layer, row in exact.rows:
        for head, cell in zip(exact.heads, row, strict=True):
            change = masked.condition("exact", layer=layer, head=head)["loss_difference"]
            assert cell is not None
            assert (cell.style, cell.text) == (change_style(change, exact.highest), signed_short(change))


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_hostile_names_do_nothing_and_nothing_sticks_out(masked: SwapReport, visit: Any, width: int) -> None:
    named = {"model": HOSTILE, "texts": HOSTILE + "/a" * 60, "model_class": HOSTILE, "revision": HOSTILE}
    html = render_html(replace(masked, manifest={**masked.manifest, **named}))
    assert "<script" not in html
    seen = visit(html, width=width)
    assert seen.page.locator("h1").inner_text() == HOSTILE
    assert seen.page.locator("img").count() == 0
    assert seen.overflow() == 0


PAGE = "docs/swap.md"


def test_blocks_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert run_blocks(PAGE)["report"].condition("exact")["hidden_change"] > 0.05


def test_the_table_holds_the_recorded_numbers():
    shown = table(page(PAGE).split("## What was found")[1])
    names = {"model": "the model", "second_order": "second order", "exact": "exact"}
    records = {
        names.get(record["estimator"], f"α = {record['alpha']:g}"): record
        for record in recorded("swap-sick-test")["conditions"]
    }
    assert len(shown) == 6
    assert f"At α = 0.5 the score is {records['α = 0.5']['score_correlation']:.4f}." in page(PAGE)
    for name, cells in shown.items():
        record = records[name]
        ends = [record.get(f"score_correlation_difference{end}") for end in ("", "_low", "_high")]
        assert numbers(cells.pop(1)) in ([], pytest.approx(ends, abs=5.1e-5))
        columns = ("score_correlation", "embedding_change", "ranking_agreement", "hidden_change")
        for cell, of in zip(cells, columns, strict=True):
            compare(cell, [record[of]])


def test_the_sentences_hold_the_recorded_intervals():
    text = page(PAGE)
    for name in ("swap-sick-test.json", "swap-sick-1500.json"):
        found = recorded(name.removesuffix(".json"))
        exact = next(record for record in found["conditions"] if record["estimator"] == "exact")
        control = next(record for record in found["against_control"] if record["estimator"] == "exact")
        for record, key in ((exact, "score_correlation_difference"), (control, "difference")):
            low, high = (f"{record[f'{key}_{end}']:+.4f}".replace("-", "−") for end in ("low", "high"))
            assert f"[{low}, {high}]" in text


@pytest.fixture(scope="module")
def several_kinds() -> SwapReport:
    return small_swap("t5", some_texts(3), estimators=["none"], ablations=["zero"], per_head=True)


def test_kinds_and_numbers_are_those_of_an_audit(several_kinds: SwapReport) -> None:
    audited = small_audit(some_texts(1), model=language_model("t5").base_model)
    known = {(one["kind"], one["layer"]): one["name"] for one in several_kinds.manifest["modules"]}
    assert {place: module.name for place, module in audited.modules.items()} == known
    assert [kind for _, kind, _ in head_maps(several_kinds)] == list(KIND_NAMES)
    by_number = {one["number"]: one["name"] for one in several_kinds.manifest["modules"]}
    assert {
        record["layer"]: record["module"] for record in several_kinds.conditions if record["layer"]
    } == by_number


def test_findings_tables_and_maps_name_the_kind(several_kinds: SwapReport) -> None:
    modules = {one["number"]: (one["kind"], one["layer"]) for one in several_kinds.manifest["modules"]}
    order = several_kinds.ranking[0]["order"]
    number, head = order[0]["layer"], order[0]["head"]
    name = f"{head_name(HeadKey(*modules[number], head), several_kinds=True)} (--layers {number})"
    assert f"is highest for {name[0].lower()}{name[1:]}: " in several_kinds.finding
    assert f"<td>{name}</td>" in render_html(several_kinds)
    for _, kind, grid in head_maps(several_kinds):
        assert [layer for layer, _ in grid.rows] == [layer for of, layer in modules.values() if of == kind]
    assert f"{modules[number][1]}, {head} ({number})" in shown(terminal_table(several_kinds))
