"""Every figure as it is seen: nothing runs out of the sheet, nothing is told apart by hue alone."""

from __future__ import annotations

import io
import itertools
from functools import cache
from typing import Any

import pytest

from fenchel.figures import FIGURES, FigureReport
from fenchel.figures.sheet import WIDTH, sheet, words
from fenchel.runs.colour import luminance
from fenchel.runs.style import LINES
from website.figures import PICTURES, RECORDS, small_picture

SAME = 0.002
"""Another version of matplotlib may smooth letters in another way."""


@cache
def recorded(name: str) -> FigureReport:
    return FigureReport.load(RECORDS / f"{name}.json")


@pytest.mark.parametrize("name", FIGURES)
def test_all_is_on_the_sheet_and_the_caption_below_it(name: str) -> None:
    from matplotlib.text import Text

    report = recorded(name)
    figure: Any = report.draw()
    width, height = figure.get_size_inches()
    assert width == WIDTH
    box = figure.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    assert len(texts) > 10
    assert min(text.get_fontsize() for text in texts) >= 6
    (caption,) = [text for text in figure.texts if len(text.get_text()) > 150]
    assert " ".join(caption.get_text().split()) == words(report.caption).replace("\u00a0", " ")
    top = caption.get_window_extent().y1
    for axes in figure.axes:
        if axes.axison:
            assert axes.get_tightbbox().y0 >= top - 1, axes.get_title(loc="left")
    assert difference(PICTURES / f"{name}.png", io.BytesIO(small_picture(figure))) < SAME


def test_another_picture_would_be_noticed() -> None:
    figure3 = recorded("figure3")
    panels = [{**panel, "apart_at_most": 0.1} for panel in figure3.numbers["panels"]]
    other = FigureReport(figure3.kind, None, {**figure3.numbers, "panels": panels})
    assert difference(PICTURES / "figure3.png", io.BytesIO(small_picture(other.draw()))) > SAME


def difference(one: Any, other: Any) -> float:
    """The mean difference of two pictures, from 0 to 1; 1 where they are not of one size."""
    from matplotlib.image import imread

    first, second = imread(one), imread(other)
    return float(abs(first - second).mean()) if first.shape == second.shape else 1.0


@pytest.mark.parametrize("name", FIGURES)
def test_captions_say_nothing_that_is_missing(name: str) -> None:
    caption = recorded(name).caption
    assert not {"None", "nan", "inf"} & set(caption.replace(",", " ").split())
    assert caption.endswith(".")
    assert "□" not in words(caption)


def test_lines_differ_in_marker_and_dashes_and_mostly_in_lightness() -> None:
    for one, other in itertools.combinations(LINES, 2):
        assert LINES[one]["marker"] != LINES[other]["marker"] or {one, other} == {"first_order", "model"}
    for one, other in (
        ("first_order", "exact"),
        ("first_order", "second_order"),
        ("model", "twin"),
        ("exact", "prediction"),
    ):
        lighter, darker = sorted((luminance(LINES[name]["color"]) for name in (one, other)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) > 1.5, (one, other)
        assert LINES[one]["linestyle"] != LINES[other]["linestyle"]


def test_a_long_caption_makes_the_sheet_longer_and_not_the_panels() -> None:
    short, long = (float(sheet(2.0, "word " * count).get_size_inches()[1]) for count in (5, 400))
    assert 2.0 < short < 2.5 < long


def test_signs_that_the_font_has_not_are_boxes() -> None:
    assert words("λ 𝒟\nα = 1") == "λ □ α\u00a0=\u00a01"
