"""``swap.html`` and docs/swap.md: their numbers are those of swaps, and the page runs nothing."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing.heads import KIND_NAMES, HeadKey, head_name
from fenchel.drawing import change_style, decimal, position, signed, signed_short
from fenchel.swap import SwapReport
from fenchel.swap.report import arm_tables, head_maps, render_html, stacks, terminal_table
from tests.auditing.report.samples import HOSTILE
from tests.auditing.small_audits import small_audit
from tests.examples.test_recorded_pages import compare, numbers, recorded, table
from tests.pages import ROOT, page, run_blocks, shown, text_of
from tests.swap.small_swaps import SCORED, language_model, small_swap


@pytest.fixture(scope="module")
def embedded() -> SwapReport:
    return small_swap("bert", pairs=SCORED, estimators=["exact"])


@pytest.fixture(scope="module")
def translated() -> SwapReport:
    return small_swap("t5", estimators=["second_order"])


def cells(html: str) -> list[list[str]]:
    """The texts of all body rows of tables."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html, flags=re.DOTALL)
    return [
        [text_of(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows
    ]


@pytest.mark.parametrize("name", ["masked", "embedded", "translated"])
def test_every_number_of_an_arm_is_there(name: str, request: pytest.FixtureRequest) -> None:
    report: SwapReport = request.getfixturevalue(name)
    rows = cells(render_html(report))
    quality = report.results["quality"]
    for record in report.conditions:
        if record["where"] != "model" or record["estimator"] == "model":
            continue
        called = f"α = {record['alpha']:g}" if record["control"] else record["estimator"].replace("_", " ")
        mine = [row for row in rows if row and row[0] == called]
        if quality is not None:
            name = f"{quality}_difference"
            spread = f"[{signed(record[f'{name}_low'])}, {signed(record[f'{name}_high'])}]"
            assert [called, "", decimal(record[quality]), signed(record[name]), spread] in mine
        low, high = record["hidden_change_low"], record["hidden_change_high"]
        spread = f"[{decimal(low)}, {decimal(high)}]"
        assert [called, "", decimal(record["hidden_change"]), spread] in mine


def test_what_is_drawn_lies_where_the_numbers_say(masked: SwapReport) -> None:
    table = arm_tables(masked)[0]
    assert (table["measure"], table["of_difference"]) == ("loss", True)
    rows = table["rows"]
    ends = [end for row in rows for end in row["interval"].span if end is not None]
    place = partial(position, low=min(0.0, *ends), high=max(0.0, *ends))
    assert table["model_at"] == place(0.0)
    for row in rows:
        estimate, low, high = row["interval"].span
        assert row["whisker"].at == place(estimate)
        if low is not None:
            assert (row["whisker"].low_at, row["whisker"].high_at) == (place(low), place(high))


def test_bars_of_layers_are_the_layers_of_the_swap(masked: SwapReport, translated: SwapReport) -> None:
    [stack] = stacks(masked)
    for layer in stack["layers"]:
        found = {one["estimator"]: one for one in masked.layers if one["layer"] == layer["layer"]}
        assert layer["bars"][0][:2] == ("exact", found["exact"]["hidden_change"])
        assert layer["alone"]["exact"] == masked.condition("exact", layer=layer["layer"])["hidden_change"]
    assert [stack["name"] for stack in stacks(translated)] == ["encoder", "decoder"]


def test_the_maps_are_the_heads_of_the_swap(masked: SwapReport, embedded: SwapReport) -> None:
    assert [estimator for estimator, _, _ in head_maps(masked)] == ["second_order", "exact"]
    exact = head_maps(masked)[1][2]
    for layer, row in exact.rows:
        for head, cell in zip(exact.heads, row, strict=True):
            change = masked.condition("exact", layer=layer, head=head)["loss_difference"]
            assert cell is not None
            assert (cell.style, cell.text) == (change_style(change, exact.highest), signed_short(change))
    assert head_maps(embedded) == []


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
    return small_swap("t5", estimators=["none"], ablations=["zero"], per_head=True)


def test_kinds_and_numbers_are_those_of_an_audit(several_kinds: SwapReport) -> None:
    audited = small_audit(model=language_model("t5").base_model)
    known = {(one["kind"], one["layer"]): one["name"] for one in several_kinds.manifest["modules"]}
    assert {place: module.name for place, module in audited.modules.items()} == known
    assert {kind for kind, _ in known} == KIND_NAMES.keys()
    by_number = {one["number"]: one["name"] for one in several_kinds.manifest["modules"]}
    assert {
        record["layer"]: record["module"] for record in several_kinds.conditions if record["layer"]
    } == by_number


def test_findings_tables_and_maps_name_the_kind(several_kinds: SwapReport, tmp_path: Path) -> None:
    modules = {one["number"]: (one["kind"], one["layer"]) for one in several_kinds.manifest["modules"]}
    order = several_kinds.ranking[0]["order"]
    names = [
        f"{head_name(HeadKey(*modules[one['layer']], one['head']), several_kinds=True)} (--layers {one['layer']})"
        for one in order
    ]
    assert f"is highest for {names[0][0].lower()}{names[0][1:]}: " in several_kinds.finding
    html = render_html(several_kinds)
    assert all(f"<td>{name}</td>" in html for name in names)
    assert [kind for _, kind, _ in head_maps(several_kinds)] == list(KIND_NAMES)
    for _, kind, grid in head_maps(several_kinds):
        assert [layer for layer, _ in grid.rows] == [layer for of, layer in modules.values() if of == kind]
    lines = shown(terminal_table(several_kinds)).splitlines()
    number, head = order[0]["layer"], order[0]["head"]
    assert any(f"{modules[number][1]}, {head} ({number})" in line for line in lines)
    several_kinds.save(tmp_path)
    assert SwapReport.load(tmp_path) == several_kinds


def test_models_of_one_kind_keep_their_numbers(masked: SwapReport) -> None:
    assert "modules" not in masked.manifest
    # The encoder alone embeds sentences.
    sentences = small_swap("t5", pairs=SCORED, per_head=True, estimators=["none"], ablations=["zero"])
    assert "modules" not in sentences.manifest
