"""Reading: a classifier of sentences that asks them a question, and of pairs of sentences that ask each other."""

from __future__ import annotations

from fenchel.train.reading.options import ClassifierOptions, PairsOptions
from fenchel.train.reading.pairs import PairReading
from fenchel.train.reading.sentences import SentenceReading

__all__ = ["ClassifierOptions", "PairReading", "PairsOptions", "SentenceReading"]
