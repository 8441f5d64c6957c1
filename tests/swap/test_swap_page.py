"""What docs/swap.md shows is what happens, and its table holds the recorded numbers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.pages import ROOT, page, run_blocks

PAGE = "docs/swap.md"


def test_blocks_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    report = run_blocks(PAGE)["report"]
    assert report.manifest["task"] == "embedding"
    assert report.arm("exact")["hidden_change"] > 0.05


def recorded(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "results" / name).read_text())


def rows(text: str) -> dict[str, str]:
    return dict(
        re.findall(r"^\| (the model|α = [\d.]+|second order|exact) \| (.* \|.*)\|$", text, flags=re.MULTILINE)
    )


def label(record: dict[str, Any]) -> str:
    names = {"model": "the model", "second_order": "second order", "exact": "exact"}
    return names.get(record["estimator"], f"α = {record['alpha']:g}")


def test_the_table_holds_the_recorded_numbers():
    shown = rows(page(PAGE).split("## What was found")[1])
    arms = recorded("swap-sick-test.json")["arms"]
    assert set(shown) == {label(record) for record in arms}
    for record in arms:
        cells = [cell.strip() for cell in shown[label(record)].split("|")]
        assert cells[0] == f"{record['score_correlation']:.4f}"
        assert float(cells[2]) == pytest.approx(record["embedding_change"], abs=5.1e-5)
        assert float(cells[3]) == pytest.approx(record["ranking_agreement"], abs=5.1e-5)
        assert float(cells[4]) == pytest.approx(record["hidden_change"], abs=5.1e-4)
        found = [float(number.replace("−", "-")) for number in re.findall(r"[+−][\d.]+", cells[1])]
        names = ["score_correlation_difference" + end for end in ("", "_low", "_high")]
        assert found == [] or found == pytest.approx([record[name] for name in names], abs=5.1e-5)


def test_a_wrong_table_would_be_noticed():
    shown = rows("| exact | 0.7709 | −0.0005 [−0.0023, +0.0013] | 0.0228 | 0.9953 | 0.233 |")
    assert shown["exact"].split("|")[0].strip() == "0.7709"


def test_the_sentences_hold_the_recorded_intervals():
    text = page(PAGE)
    for name in ("swap-sick-test.json", "swap-sick-1500.json"):
        found = recorded(name)
        exact = next(record for record in found["arms"] if record["estimator"] == "exact")
        control = next(record for record in found["against_control"] if record["estimator"] == "exact")
        for record, key in ((exact, "score_correlation_difference"), (control, "difference")):
            low, high = (f"{record[f'{key}_{end}']:+.4f}".replace("-", "−") for end in ("low", "high"))
            assert f"[{low}, {high}]" in text
