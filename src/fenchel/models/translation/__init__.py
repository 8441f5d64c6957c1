"""A translator whose parts are the papers' figure 1: templates, evidence, preference, inference and head."""

from __future__ import annotations

from fenchel.models.translation.decoder import DECODERS as DECODERS
from fenchel.models.translation.encoder import Encoder as Encoder
from fenchel.models.translation.encoder import Reading as Reading
from fenchel.models.translation.evidence import SCORES as SCORES
from fenchel.models.translation.evidence import evidence_of as evidence_of
from fenchel.models.translation.head import HEADS as HEADS
from fenchel.models.translation.head import Head as Head
from fenchel.models.translation.preference import PLACES as PLACES
from fenchel.models.translation.preference import PREFERENCES as PREFERENCES
from fenchel.models.translation.preference import preference_of as preference_of
from fenchel.models.translation.translator import ATTENTIONS as ATTENTIONS
from fenchel.models.translation.translator import QUERIES as QUERIES
from fenchel.models.translation.translator import STARTS as STARTS
from fenchel.models.translation.translator import Translator as Translator

__all__ = [
    "ATTENTIONS",
    "DECODERS",
    "HEADS",
    "PLACES",
    "PREFERENCES",
    "QUERIES",
    "SCORES",
    "STARTS",
    "Encoder",
    "Head",
    "Reading",
    "Translator",
    "evidence_of",
    "preference_of",
]
