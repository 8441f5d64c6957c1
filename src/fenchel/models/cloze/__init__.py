"""Filling in blanks, as BERT does: figure 2c of the papers."""

from __future__ import annotations

from fenchel.models.cloze.conversion import from_transformers as from_transformers
from fenchel.models.cloze.conversion import to_transformers as to_transformers
from fenchel.models.cloze.model import Cloze as Cloze

__all__ = ["Cloze", "from_transformers", "to_transformers"]
