"""Looking an entry up, and tables of all."""

from __future__ import annotations

import json

import pytest

from fenchel.catalogue import ENTRIES, FAMILIES, difference, entry
from fenchel.catalogue.page import fill_page, filled
from fenchel.catalogue.table import described, layer_table, record
from fenchel.errors import InputError
from tests import pages


def test_an_unknown_name_has_the_nearest_named():
    with pytest.raises(InputError, match="no entry 'scaled-dott'; nearest: scaled-dot"):
        entry("scaled-dott")
    with pytest.raises(InputError, match=r"no entry 'q'\. 'fenchel catalogue' lists all"):
        entry("q")


def test_families_are_headings_without_repetition():
    families = [one.family for one in ENTRIES.values()]
    assert [name for place, name in enumerate(families) if place == 0 or families[place - 1] != name] == list(
        FAMILIES
    )


def test_records_are_json():
    for one in ENTRIES.values():
        assert json.loads(json.dumps(record(one)))["name"] == one.name


def test_what_is_measured_is_measured_anew():
    found = described(entry("scaled-dot"), "tsallis:1.5", seed=4)["measured"]
    first = difference(entry("scaled-dot"), closeness="tsallis:1.5", seed=4)
    assert found["closeness"] == "tsallis:1.5"
    assert found["estimators"][0] == first.to_json()
    assert [one["estimator"] for one in found["estimators"]] == ["first_order", "second_order", "exact"]


def test_layers_stand_in_the_table():
    table = layer_table(ENTRIES.values())
    assert "| Scaled dot-product attention (Vaswani et al. 2017) | `Uniform()` | `ScaledDot()` |" in table


def test_pages_without_a_place_for_the_table_are_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(InputError, match=r"page\.md marks no place"):
        fill_page(page)


def test_the_table_stands_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- catalogue: layers -->\nold\n<!-- end of catalogue -->\nafter\n")
    fill_page(page)
    text = page.read_text()
    assert text.startswith("before\n<!-- catalogue: layers -->\n\n| Mechanism |")
    assert text.endswith("|\n\n<!-- end of catalogue -->\nafter\n")
    assert "old" not in text


def test_the_page_on_preferences_has_the_table_of_today():
    text = pages.page("docs/preferences.md")
    assert layer_table(ENTRIES.values()) in text
    assert filled(text) == text
