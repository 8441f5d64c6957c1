"""A captioner of images, whose attention is soft, hard, or none."""

from __future__ import annotations

from fenchel.train.captions.options import CaptionOptions
from fenchel.train.captions.task import Captioning

__all__ = ["CaptionOptions", "Captioning"]
