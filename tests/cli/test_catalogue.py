"""``fenchel catalogue``: the list, one entry, JSON, and wrong names."""

import json

import pytest

from fenchel.catalogue import ENTRIES, difference, entry
from tests.cli.conftest import Command


def test_without_a_name_all_are_listed(command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = command("catalogue")
    assert done.code == 0
    assert [name for name in ENTRIES if name not in done.out] == []


@pytest.mark.parametrize("columns", [60, 80])
def test_names_are_in_one_piece_however_narrow(command: Command, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = command("catalogue").out.splitlines()
    assert {line.split()[0] for line in lines if line.strip()} >= set(ENTRIES)
    assert "from 120 columns on" in "\n".join(lines)


def test_one_entry_says_its_parts_and_what_is_measured(command: Command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = command("catalogue", "scaled-dot")
    assert done.code == 0
    for said in (
        "Vaswani et al. 2017",
        "one inference",
        "k_j/√d",
        f"{difference(entry('scaled-dot')).gap:.3f}",
    ):
        assert said in done.out


def test_json_has_every_entry_and_one(command: Command):
    assert [one["name"] for one in json.loads(command("catalogue", "--json").out)] == list(ENTRIES)
    one = json.loads(
        command("catalogue", "scaled-dot", "--json", "--closeness", "sparsemax", "--seed", 2).out
    )
    expected = difference(entry("scaled-dot"), closeness="sparsemax", seed=2)
    assert one["measured"]["estimators"][0]["gap"] == expected.gap


def test_wrong_names_are_one_line(command: Command):
    done = command("catalogue", "scaled-dott")
    assert done.code == 3
    assert "nearest: scaled-dot" in done.line
    assert "nearest: scaled-dot" in command("catalogue", "Scaled_Dot").line
    assert command("catalogue", "scaled-dot", "--closeness", "tsalis:2").code == 3
    done = command("catalogue", "--seed", 3)
    assert done.code == 2
    assert "name the mechanism" in done.line
