"""Train a model of a task, images, sentences or captions: exactly resumable, on one process or several."""

from __future__ import annotations

from fenchel.train.captions import CaptionOptions
from fenchel.train.cloze import ClozeOptions, FineTuningOptions
from fenchel.train.metric import Metric
from fenchel.train.observer import TrainObserver
from fenchel.train.options import LoopOptions
from fenchel.train.progress import Progress
from fenchel.train.reading import ClassifierOptions, PairsOptions
from fenchel.train.registry import TASKS, registered
from fenchel.train.result import TrainResult
from fenchel.train.run import train
from fenchel.train.task import StepLoss, Task
from fenchel.train.text import TextOptions
from fenchel.train.trained import load_model
from fenchel.train.translation import TranslationOptions
from fenchel.train.vision import TrainOptions

__all__ = [
    "TASKS",
    "CaptionOptions",
    "ClassifierOptions",
    "ClozeOptions",
    "FineTuningOptions",
    "LoopOptions",
    "Metric",
    "PairsOptions",
    "Progress",
    "StepLoss",
    "Task",
    "TextOptions",
    "TrainObserver",
    "TrainOptions",
    "TrainResult",
    "TranslationOptions",
    "load_model",
    "registered",
    "train",
]
