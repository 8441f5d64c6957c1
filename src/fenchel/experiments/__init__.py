"""Tables 1 and 2 of the paper and an ablation: several arms on one budget, over seeds, beside the paper's numbers."""

from __future__ import annotations

from fenchel.experiments.arm import ARMS
from fenchel.experiments.budget import BUDGETS
from fenchel.experiments.definition import EXPERIMENTS
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.run import report_on, run_experiment

__all__ = ["ARMS", "BUDGETS", "EXPERIMENTS", "ExperimentReport", "report_on", "run_experiment"]
