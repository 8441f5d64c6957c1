"""Arms of a task on one budget, over seeds, with intervals: tables 1 and 2 of the paper, an ablation, and pooling."""

from __future__ import annotations

from fenchel.experiments.definition import EXPERIMENTS
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.run import report_on, run_experiment
from fenchel.experiments.vision import ARMS, BUDGETS

__all__ = ["ARMS", "BUDGETS", "EXPERIMENTS", "ExperimentReport", "report_on", "run_experiment"]
