"""Train the vision transformers of ``fenchel.models`` on real images: exactly resumable, on one process or several."""

from __future__ import annotations

from fenchel.train.observer import TrainObserver
from fenchel.train.options import TrainOptions
from fenchel.train.progress import Progress
from fenchel.train.result import TrainResult
from fenchel.train.run import train
from fenchel.train.trained import load_model

__all__ = ["Progress", "TrainObserver", "TrainOptions", "TrainResult", "load_model", "train"]
