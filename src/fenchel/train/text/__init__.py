"""Classifiers of sentences, pooled by attention with a learned question or by their mean."""

from __future__ import annotations

from fenchel.train.text.options import TextOptions
from fenchel.train.text.task import TextClassification

__all__ = ["TextClassification", "TextOptions"]
