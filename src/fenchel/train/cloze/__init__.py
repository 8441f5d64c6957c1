"""Models that fill in blanks, and classifiers that begin with one."""

from __future__ import annotations

from fenchel.train.cloze.fine_tuning import FineTuning
from fenchel.train.cloze.fine_tuning_options import FineTuningOptions
from fenchel.train.cloze.options import ClozeOptions
from fenchel.train.cloze.task import ClozeTask

__all__ = ["ClozeOptions", "ClozeTask", "FineTuning", "FineTuningOptions"]
