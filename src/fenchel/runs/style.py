"""One look for all figures: a font that is everywhere the same, and lines that are told apart without their hue."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["FONT", "GRID", "INK", "LINES", "MUTED", "SETTINGS"]

FONT: Final = "DejaVu Sans"
"""It comes with matplotlib, so that figures are the same everywhere."""

INK: Final = "#1b2130"
"""Of text, axes and what matters most."""

MUTED: Final = "#6b7484"
"""Of what stands behind it."""

GRID: Final = "#d5d9e0"

SETTINGS: Final[dict[Any, Any]] = {"font.family": FONT, "font.size": 8, "axes.edgecolor": INK}
"""Settings of matplotlib that every figure begins with."""

LINES: Final[dict[str, dict[str, Any]]] = {
    "first_order": {"color": "#2f7fc1", "marker": "o", "linestyle": (0, (5, 1.5))},
    "second_order": {"color": "#7fb2dc", "marker": "s", "linestyle": (0, (4, 2))},
    "exact": {"color": "#8a2b06", "marker": "D", "linestyle": "-"},
    "bound": {"color": MUTED, "marker": "v", "linestyle": (0, (1, 1))},
    "prediction": {"color": "#d98a00", "marker": "x", "linestyle": (0, (3, 1, 1, 1))},
    "model": {"color": "#1f4e9c", "marker": "o", "linestyle": "-"},
    "twin": {"color": "#d1500a", "marker": "^", "linestyle": (0, (4, 2)), "markerfacecolor": "white"},
}
"""How each thing that figures show is drawn wherever it is: colour, marker and line differ, and so does lightness."""
