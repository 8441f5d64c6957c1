"""One scale for every picture, which grey and colour-blind eyes can read too."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from fenchel.drawing import LEVELS, SCALE, level, luminance, stylesheet


def is_falling(numbers: list[float]) -> bool:
    return all(after < before for before, after in pairwise(numbers))


def test_the_scale_darkens_steadily_so_that_grey_and_colour_blind_eyes_can_read_it() -> None:
    lightness = [luminance(colour) ** (1 / 3) for colour in SCALE]
    steps = [before - after for before, after in pairwise(lightness)]
    assert len(lightness) == LEVELS
    assert is_falling(lightness)
    assert min(steps) > 0.25 * sum(steps) / len(steps)
    assert not is_falling([0.9, 0.5, 0.6])


@pytest.mark.parametrize("colours", [SCALE, SCALE[::-1]], ids=["light", "dark"])
def test_ink_contrasts_with_every_colour(colours: tuple[str, ...]) -> None:
    rules = re.findall(r"\.q(\d+)\{background:(#\w{6});color:(#\w+)\}", stylesheet(colours))
    assert [int(step) for step, _, _ in rules] == list(range(LEVELS))
    for _, paper, ink in rules:
        light, dark = sorted((luminance(paper), luminance("#ffffff" if ink == "#fff" else ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4.4, (paper, ink)


def test_levels_cover_the_scale() -> None:
    assert [level(x, 2.0) for x in (0.0, 1.0, 2.0, 3.0)] == [0, LEVELS // 2, LEVELS - 1, LEVELS - 1]
