"""Pictures, colours and numbers: of attention weights, of every scale, as pages and tables write them."""

import math
import re
from itertools import pairwise

import pytest

from fenchel.drawing import LEVELS, SCALE, count, decimal, level, luminance, percent, short, stylesheet


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
