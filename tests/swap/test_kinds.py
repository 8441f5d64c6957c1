"""Swaps of models with several kinds of attention name layers and heads as audits do."""

from pathlib import Path

import pytest

from fenchel.auditing.heads import KIND_NAMES, HeadKey, head_name
from fenchel.swap import SwapReport
from fenchel.swap.report import head_maps, render_html, terminal_table
from tests.auditing.small_audits import small_audit
from tests.pages import shown
from tests.swap.small_swaps import SCORED, language_model, small_swap


@pytest.fixture(scope="module")
def translated() -> SwapReport:
    return small_swap("t5", estimators=["none"], ablations=["zero"], per_head=True)


def test_kinds_and_numbers_are_those_of_an_audit(translated: SwapReport) -> None:
    audited = small_audit(model=language_model("t5").base_model)
    known = {(one["kind"], one["layer"]): one["name"] for one in translated.manifest["modules"]}
    assert {place: module.name for place, module in audited.modules.items()} == known
    assert {kind for kind, _ in known} == KIND_NAMES.keys()
    by_number = {one["number"]: one["name"] for one in translated.manifest["modules"]}
    assert {arm["layer"]: arm["module"] for arm in translated.arms if arm["layer"]} == by_number


def test_findings_tables_and_maps_name_the_kind(translated: SwapReport, tmp_path: Path) -> None:
    modules = {one["number"]: (one["kind"], one["layer"]) for one in translated.manifest["modules"]}
    order = translated.ranking[0]["order"]
    names = [
        f"{head_name(HeadKey(*modules[one['layer']], one['head']), several_kinds=True)} (--layers {one['layer']})"
        for one in order
    ]
    assert f"is highest for {names[0][0].lower()}{names[0][1:]}: " in translated.finding
    html = render_html(translated)
    assert all(f"<td>{name}</td>" in html for name in names)
    assert [kind for _, kind, _ in head_maps(translated)] == list(KIND_NAMES)
    for _, kind, grid in head_maps(translated):
        assert [layer for layer, _ in grid.rows] == [layer for of, layer in modules.values() if of == kind]
    lines = shown(terminal_table(translated)).splitlines()
    number, head = order[0]["layer"], order[0]["head"]
    assert any(f"{modules[number][1]}, {head} ({number})" in line for line in lines)
    translated.save(tmp_path)
    assert SwapReport.load(tmp_path) == translated


def test_models_of_one_kind_keep_their_numbers(masked: SwapReport) -> None:
    assert "modules" not in masked.manifest
    # The encoder alone embeds sentences.
    sentences = small_swap("t5", pairs=SCORED, per_head=True, estimators=["none"], ablations=["zero"])
    assert "modules" not in sentences.manifest
