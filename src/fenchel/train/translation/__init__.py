"""Translators, from the loss of a word to the BLEU of a test."""

from __future__ import annotations

from fenchel.train.translation.options import TranslationOptions
from fenchel.train.translation.task import Translation

__all__ = ["Translation", "TranslationOptions"]
