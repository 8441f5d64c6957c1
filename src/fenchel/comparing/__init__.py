"""Compare audits of two models, texts or checkpoints head by head, or of several as a trajectory."""

from __future__ import annotations

from fenchel.comparing.comparison import Change, Comparison
from fenchel.comparing.report import ComparisonReport, compare

__all__ = ["Change", "Comparison", "ComparisonReport", "compare"]
