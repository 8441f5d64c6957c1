"""One look for all figures: colours, and a font that is everywhere the same."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["FONT", "GRID", "INK", "MUTED", "SETTINGS"]

FONT: Final = "DejaVu Sans"
"""It comes with matplotlib, so that figures are the same everywhere."""

INK: Final = "#1b2130"
"""Of text, axes and what matters most."""

MUTED: Final = "#6b7484"
"""Of what stands behind it."""

GRID: Final = "#d5d9e0"

SETTINGS: Final[dict[Any, Any]] = {"font.family": FONT, "font.size": 8, "axes.edgecolor": INK}
"""Settings of matplotlib that every figure begins with."""
