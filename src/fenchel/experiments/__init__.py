"""Arms of a task on one budget, over seeds, with intervals: the paper's tables, and what small models come to."""

from __future__ import annotations

from fenchel.experiments.collection import COLLECTIONS, report_on_collection, run_collection
from fenchel.experiments.definition import EXPERIMENTS
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.run import report_on, run_experiment
from fenchel.experiments.vision import ARMS, BUDGETS

__all__ = [
    "ARMS",
    "BUDGETS",
    "COLLECTIONS",
    "EXPERIMENTS",
    "ExperimentReport",
    "report_on",
    "report_on_collection",
    "run_collection",
    "run_experiment",
]
