"""Compare audits: two models, texts or checkpoints head by head, or more of them as a trajectory."""

from __future__ import annotations

from fenchel.comparing.comparison import Change, Comparison
from fenchel.comparing.report import ComparisonReport, compare

__all__ = ["Change", "Comparison", "ComparisonReport", "compare"]
