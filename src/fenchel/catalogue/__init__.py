"""Attention mechanisms of the literature, each as inference: templates, preference, evidence, closeness."""

from fenchel.catalogue.entry import Difference, Entry, EntryResult, Paper, Symmetry, Verdict, difference
from fenchel.catalogue.parts import AbstractParts, GaussianParts, Parts, RelativeParts, TransportParts
from fenchel.catalogue.registry import ENTRIES, entry

__all__ = [
    "ENTRIES",
    "AbstractParts",
    "Difference",
    "Entry",
    "EntryResult",
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
