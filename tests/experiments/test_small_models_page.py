"""The page on what the small models came to: it holds what was recorded, and says of the rest that it was not run."""

from __future__ import annotations

import re

from fenchel.experiments import COLLECTIONS, EXPERIMENTS, ExperimentReport
from fenchel.experiments.page import filled
from tests.pages import ROOT, page, run_blocks

PAGE = "docs/experiments.md"
RESULTS = ROOT / "docs" / "results"


def named() -> list[str]:
    return re.findall("<!-- results: (.*) -->", page(PAGE))


def test_blocks_run(capsys):
    run_blocks(PAGE)
    assert "first-order" in capsys.readouterr().out


def test_every_new_experiment_has_its_place():
    parts = [part for name in ("reading", "pretraining", "captions") for part in COLLECTIONS[name].parts]
    assert named() == ["translation", *parts]
    assert set(named()) <= set(EXPERIMENTS)


def test_the_page_holds_what_was_recorded_and_says_what_was_not_run():
    text = page(PAGE)
    for name in named():
        recorded, place = RESULTS / f"{name}.json", text.split(f"<!-- results: {name} -->")[1]
        place = place.split("<!-- end of results -->")[0]
        if recorded.exists():
            assert filled(text, {name: ExperimentReport.load(recorded)}) == text
            assert (ROOT / "docs" / "images" / f"{name}.png").exists()
        else:
            assert f"Not run yet: `fenchel experiment {name} --budget desk" in place


def test_recorded_runs_are_of_experiments_that_there_are():
    folder = RESULTS / "runs"
    for path in folder.rglob("seed-*.json") if folder.exists() else ():
        name, _, arm = path.relative_to(folder).parts[:3]
        assert arm in EXPERIMENTS[name].of.arms
