"""Swap the inference of a trained model's attention: other estimators, one by one, against a control."""

from __future__ import annotations

from fenchel.run_options import PairColumns
from fenchel.swap.report import SwapReport
from fenchel.swap.run import swap

__all__ = ["PairColumns", "SwapReport", "swap"]
