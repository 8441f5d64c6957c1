"""Attention mechanisms of the literature, each as inference: templates, preference, evidence, closeness."""

from fenchel.catalogue.entry import Answer, Difference, Entry, Paper, Symmetry, Verdict, difference
from fenchel.catalogue.parts import AbstractParts, GaussianParts, Parts, RelativeParts, TransportParts
from fenchel.catalogue.registry import ENTRIES, entry

__all__ = [
    "ENTRIES",
    "AbstractParts",
    "Answer",
    "Difference",
    "Entry",
    "GaussianParts",
    "Paper",
    "Parts",
    "RelativeParts",
    "Symmetry",
    "TransportParts",
    "Verdict",
    "difference",
    "entry",
]
