"""The sheet that every figure is drawn on: panels with letters, a caption below that says all that is seen."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fenchel.runs.colour import scale
from fenchel.runs.style import FONT, GRID, INK, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

__all__ = ["SHEET_SETTINGS", "WIDTH", "colours", "heatmap", "lettered", "ruled", "sheet", "words"]

WIDTH = 7.2
"""Inches: the text of a page, or a slide."""

SHEET_SETTINGS: dict[Any, Any] = {
    **SETTINGS,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "mathtext.fontset": "dejavusans",
    "svg.fonttype": "path",
    "svg.hashsalt": "fenchel",  # without it, two figures of the same numbers differ
}
"""Settings of matplotlib for all of them."""

_LETTERS_A_LINE = 135
_CAPTION_SIZE = 7
_LINE = 0.133  # inches


def sheet(height: float, caption: str) -> Figure:
    """An empty figure with a caption below; panels added to it do not overlap it.

    Args:
        height: Of the panels together, in inches.
        caption: Plain text, wrapped here; what the font has no sign for becomes a box.

    Returns:
        A figure of matplotlib with a constrained layout.
    """
    from matplotlib.figure import Figure

    lines = textwrap.wrap(words(caption), _LETTERS_A_LINE, break_on_hyphens=False)
    below = _LINE * len(lines) + 0.14
    figure = Figure(figsize=(WIDTH, height + below), facecolor="white", layout="constrained")
    share = below / (height + below)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.008, share, 0.984, 0.992 - share), h_pad=0.05, w_pad=0.05)
    figure.text(
        0.012, 0.06 / (height + below), "\n".join(lines), fontsize=_CAPTION_SIZE, color=INK, va="bottom",
        linespacing=1.35, parse_math=False,
    )  # fmt: skip
    return figure


def lettered(panels: Sequence[Axes], titles: Sequence[str]) -> None:
    """Title the panels (a), (b), ..."""
    for letter, axes, title in zip(string.ascii_lowercase, panels, titles, strict=False):
        axes.set_title(f"({letter}) {title}", loc="left", parse_math=False)


def ruled(axes: Axes, **options: Any) -> None:
    """Light lines behind what is drawn."""
    axes.grid(color=GRID, linewidth=0.5, **options)
    axes.set_axisbelow(True)


def colours() -> ListedColormap:
    """The scale from light to dark that stays ordered in grey."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(scale())


def heatmap(axes: Axes, rows: Sequence[Sequence[float]], *, highest: float, power: float = 1.0) -> Any:
    """Draw a matrix of numbers from 0 on, its first row on top.

    Args:
        axes: Where.
        rows: The matrix.
        highest: What is darkest.
        power: Colours go with this power of the numbers: with 1/2 small ones can still be seen.

    Returns:
        What a colour bar is made for.
    """
    from matplotlib.colors import PowerNorm

    scaled = PowerNorm(power, vmin=0, vmax=highest, clip=True)
    drawn = axes.imshow(rows, cmap=colours(), norm=scaled, interpolation="nearest", aspect="auto")
    axes.spines[["top", "right"]].set_visible(True)
    axes.tick_params(length=2)
    return drawn


def words(text: str) -> str:
    """Text on one line of which the font has every sign; others are replaced, so that nothing warns."""
    from matplotlib import font_manager

    known = font_manager.get_font(font_manager.findfont(FONT)).get_charmap()
    line = " ".join(text.split()).replace(" = ", "\u00a0=\u00a0")  # not to be parted
    return "".join(sign if ord(sign) in known else "□" for sign in line)
