"""The page on training: its example runs, and its table of recipes says what the recipes are."""

from __future__ import annotations

import re

import pytest

from fenchel.train.vision.recipe import RECIPES
from tests.pages import page, run_blocks


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks("docs/training.md")
    assert names["result"].finished
    assert names["result"].test_accuracy > 0.8
    assert (tmp_path / "runs" / "mine" / "curves.png").exists()
    assert not names["model"].training


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("Weight decay", "weight_decay"),
        ("Warm-up, share of all steps", "warmup_fraction"),
        ("Label smoothing", "label_smoothing"),
    ],
)
def test_the_table_of_recipes_is_true(row, field):
    found = re.search(rf"^\| {row} \| (\S+) \| (\S+) \|$", page("docs/training.md"), flags=re.MULTILINE)
    assert found is not None
    assert [float(value) for value in found.groups()] == [
        getattr(RECIPES[name], field) for name in ("paper", "strong")
    ]


def test_what_the_table_says_in_words():
    strong, paper = RECIPES["strong"], RECIPES["paper"]
    assert (strong.gradient_clip, strong.crop_padding, strong.flip) == (1.0, 4, True)
    assert (strong.erasing, strong.mixup) == (0.25, 0.5)
    assert (paper.gradient_clip, paper.crop_padding, paper.flip, paper.erasing, paper.mixup) == (
        0,
        0,
        False,
        0,
        0,
    )
