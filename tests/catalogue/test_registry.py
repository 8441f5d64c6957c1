"""Looking an entry up, and tables of all."""

import json

import pytest

from fenchel.catalogue import ENTRIES, FAMILIES, difference, entry
from fenchel.catalogue.registry import described, record
from fenchel.errors import InputError


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
