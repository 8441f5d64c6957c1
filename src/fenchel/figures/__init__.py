"""Figures of the theory and of audits, each as PNG and SVG with its numbers beside it as JSON."""

from __future__ import annotations

from fenchel.figures.figure_kind import FigureKind
from fenchel.figures.figure_report import FigureReport
from fenchel.figures.registry import FIGURES, figure_named
from fenchel.figures.run import make_figure

__all__ = ["FIGURES", "FigureKind", "FigureReport", "figure_named", "make_figure"]
