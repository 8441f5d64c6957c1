"""docs/examples.md holds the recorded numbers of the examples that were run in full."""

from __future__ import annotations

import json
import re
from statistics import fmean
from typing import Any

import pytest
from scipy import stats

from tests.pages import ROOT, page

PAGE = "docs/examples.md"


def recorded(name: str) -> dict[str, list[dict[str, float]]]:
    return json.loads((ROOT / "docs" / "results" / f"example-{name}.json").read_text())["runs"]


def rows(section: str) -> dict[str, list[list[float]]]:
    """The numbers of each cell, by the name of the row."""
    text = page(PAGE).split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    number = r"[+−]?\d[\d,]*\.?\d*"
    return {
        name.strip(): [
            [float(one.replace("−", "-").replace(",", "")) for one in re.findall(number, cell)]
            for cell in cells
        ]
        for name, *cells in lines
    }


def interval(values: Any) -> list[float]:
    found = list(values)
    return [fmean(found), stats.t.ppf(0.975, len(found) - 1) * stats.sem(found)]


def test_sparse_attention() -> None:
    runs, shown = recorded("sparse-trec"), rows("Sparse attention on TREC")
    assert shown.keys() == runs.keys()
    for name, found in runs.items():
        zero_read, zero_ask, right, more = shown[name]
        assert zero_read == [pytest.approx(sum(one["read_zero"] for one in found) / len(found), abs=0.051)]
        assert zero_ask == [pytest.approx(sum(one["ask_zero"] for one in found) / len(found), abs=0.051)]
        assert right == pytest.approx(interval(one["accuracy"] for one in found), abs=0.051)
        pairs = zip(found, runs["softmax"], strict=True)
        expected = interval(one["accuracy"] - other["accuracy"] for one, other in pairs)
        assert more == ([] if name == "softmax" else pytest.approx(expected, abs=0.051))


def test_noisy_memories() -> None:
    runs, shown = recorded("noisy-memories"), rows("Noisy memories")
    assert shown.keys() == runs.keys()
    for name, found in runs.items():
        right, well, badly, parameters = shown[name]
        assert right == pytest.approx(interval(one["right"] for one in found), abs=0.051)
        assert well == pytest.approx(interval(one["follows_well"] for one in found), abs=0.0051)
        assert badly == pytest.approx(interval(one["follows_badly"] for one in found), abs=0.0051)
        assert parameters == [found[0]["parameters"]]


def test_where_it_is() -> None:
    runs, shown = recorded("where-it-is"), rows("Where it is")
    assert shown.keys() == runs.keys()
    for name, found in runs.items():
        right, distance, inside = shown[name]
        assert right == pytest.approx(interval(one["right"] for one in found), abs=0.051)
        assert distance == pytest.approx(interval(one["distance"] for one in found), abs=0.00051)
        assert inside == pytest.approx(interval(one["inside"] for one in found), abs=0.051)
    assert (ROOT / "docs" / "images" / "where-it-is.png").exists()
