"""Answers with their attention maps as one self-contained page: no network, no script, all text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fenchel.answering.attention_map import AttentionMap, Grid
from fenchel.answering.map_figure import write_maps_figure
from fenchel.answering.terminal_map import short_bound
from fenchel.auditing.report.self_contained import page_environment, page_file
from fenchel.runs.colour import LEVELS, level, scale, stylesheet
from fenchel.runs.number import decimal, short
from fenchel.storage import check_writable, write_text

__all__ = ["PAGE_FILE", "ShownAnswer", "render_page", "write_shown"]

PAGE_FILE = "attention.html"
"""The page's name in its folder."""

_PACKAGE = "fenchel.answering"
_REPORT = "fenchel.auditing.report"
_ESTIMATORS = (("first order", "first_order"), ("exact", "exact"))
_SIDE = 10  # of a cell of an image, in the drawing's own unit
_VEIL = 0.86


@dataclass(frozen=True)
class ShownAnswer:
    """An answer and what its model attended to.

    Attributes:
        question: What was asked.
        answer: What the model answered.
        maps: At least one.
    """

    question: str
    answer: str
    maps: tuple[AttentionMap, ...]


@dataclass(frozen=True)
class _Cell:
    style: str
    text: str
    said: str


def write_shown(shown: Sequence[ShownAnswer], directory: str | Path, *, title: str) -> Path:
    """Write the page of some answers, and a figure of each: ``attention-1.png`` and so on.

    Args:
        shown: At least one.
        directory: Folder; made if needed. Files of these names in it are replaced.
        title: Of the page.

    Returns:
        The page's path.

    Raises:
        MissingExtraError: If jinja2 or matplotlib is not installed.
        OutputError: If something cannot be written.
    """
    folder = Path(directory)
    page = render_page(shown, title=title)
    check_writable(folder)
    for number, one in enumerate(shown, 1):
        heading = f"{one.question} → {one.answer}"
        write_maps_figure(one.maps, folder / f"attention-{number}.png", title=heading)
    write_text(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def render_page(shown: Sequence[ShownAnswer], *, title: str) -> str:
    """The page as HTML.

    Args:
        shown: At least one.
        title: Of the page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    environment = page_environment(_PACKAGE)
    environment.globals.update(cells=_cells, overlay=_overlay, bound=_bound)
    colours = scale()
    return environment.get_template("attention.html.jinja").render(
        title=title,
        shown=shown,
        estimators=_ESTIMATORS,
        levels=range(LEVELS),
        style=page_file(_REPORT, "report.css") + page_file(_PACKAGE, "attention.css"),
        light_scale=stylesheet(colours),
        dark_scale=stylesheet(colours[::-1]),
    )


def _bound(value: Tensor) -> str:
    return short_bound(float(value))


def _cells(one: AttentionMap, estimator: str, query: int) -> Iterator[_Cell]:
    for key, weight in zip(one.keys, getattr(one, estimator)[query].tolist(), strict=True):
        text = short(weight).removeprefix("0") if weight >= 0.005 else ""
        yield _Cell(f"q{level(weight, 1.0)}", text, f"{one.queries[query]} → {key}: {decimal(weight)}")


def _overlay(grid: Grid, weights: Tensor) -> Iterator[tuple[int, int, float]]:
    """Where a cell of an image is, and how dark it is."""
    heaviest = max(float(weights.max()), 1e-12)
    for place, weight in enumerate(weights.tolist()):
        row, column = divmod(place, grid.columns)
        # The square root: a cell with a tenth of the weight can still be seen.
        yield column * _SIDE, row * _SIDE, round(_VEIL * (1 - (weight / heaviest) ** 0.5), 3)
