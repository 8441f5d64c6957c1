"""Pictures, colours and numbers: of attention weights, of every scale, as pages and tables write them."""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread

from fenchel.drawing import LEVELS, SCALE, count, decimal, level, luminance, percent, short, stylesheet
from fenchel.errors import InputError
from fenchel.plot import heatmap


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_draws_any_labels(tmp_path: Path, ending: str) -> None:
    weights = torch.rand(3, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows, columns = ["$a_{$", "<b>", "\\frac"], ["long " * 8, *("x" for _ in range(39))]
    path = heatmap(weights, rows, columns, tmp_path / f"pair.{ending}", title="$100 & <script>")
    assert path.stat().st_size > 1000
    assert list(tmp_path.iterdir()) == [path]
    if ending == "svg":
        text = path.read_text()
        assert "<script>" not in text
        named = set(re.findall(r"https?://([\w.]+)", text))
        assert named <= {"www.w3.org", "purl.org", "creativecommons.org", "matplotlib.org"}


def test_larger_weights_are_darker(tmp_path: Path) -> None:
    path = heatmap(torch.tensor([[0.0, 1.0], [0.5, 0.0]]), ["a", "b"], ["c", "d"], tmp_path / "pair.png")
    pixels = torch.from_numpy(imread(path)[..., :3].copy()).sum(-1)
    _, counts = pixels.round(decimals=3).unique(return_counts=True)
    assert int((counts > 400).sum()) >= 3  # white, and the two shades


def test_refuses_what_cannot_be_drawn(tmp_path: Path) -> None:
    eye, path = torch.eye(2), tmp_path / "a.png"
    good: dict[str, Any] = {"weights": eye, "rows": ["a", "b"], "columns": ["c", "d"], "path": path}
    wrong: list[tuple[str, Any]] = [
        *(("weights", one) for one in (eye.long(), eye[0], torch.zeros(0, 2), -eye, eye / 0, [[1.0]])),
        *(("rows", ["a"]), ("columns", ["c", "d", "e"]), ("path", tmp_path / "a.txt")),
    ]
    for name, value in wrong:
        with pytest.raises(InputError, match=name):
            heatmap(**good | {name: value})
    assert not list(tmp_path.iterdir())


def test_the_scale_darkens_steadily_so_that_grey_and_colour_blind_eyes_can_read_it() -> None:
    lightness = [luminance(colour) ** (1 / 3) for colour in SCALE]
    steps = [before - after for before, after in pairwise(lightness)]
    assert len(lightness) == LEVELS
    assert min(steps) > 0.25 * sum(steps) / len(steps) > 0


@pytest.mark.parametrize("colours", [SCALE, SCALE[::-1]], ids=["light", "dark"])
def test_ink_contrasts_with_every_colour(colours: tuple[str, ...]) -> None:
    rules = re.findall(r"\.q(\d+)\{background:(#\w{6});color:(#\w+)\}", stylesheet(colours))
    assert [int(step) for step, _, _ in rules] == list(range(LEVELS))
    for _, paper, ink in rules:
        light, dark = sorted((luminance(paper), luminance("#ffffff" if ink == "#fff" else ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4.4, (paper, ink)


def test_levels_cover_the_scale_and_numbers_that_are_none_are_written() -> None:
    assert [level(x, 2.0) for x in (0.0, 1.0, 2.0, 3.0)] == [0, LEVELS // 2, LEVELS - 1, LEVELS - 1]
    for write in (decimal, short, percent):
        assert [write(value) for value in (math.inf, -math.inf, math.nan, None)] == ["∞", "−∞", "–", "–"]
    assert count(None) == "–"
