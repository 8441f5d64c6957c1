"""Vision transformers on labelled images, of which another of the same class may join each."""

from __future__ import annotations

from fenchel.train.vision.options import TrainOptions
from fenchel.train.vision.task import ImageClassification, Images

__all__ = ["ImageClassification", "Images", "TrainOptions"]
