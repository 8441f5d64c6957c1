"""Attention mechanisms of the literature, each as inference: templates, preference, evidence, closeness."""

from fenchel.catalogue.entry import Answer as Answer
from fenchel.catalogue.entry import Difference as Difference
from fenchel.catalogue.entry import Entry as Entry
from fenchel.catalogue.entry import Paper as Paper
from fenchel.catalogue.entry import Symmetry as Symmetry
from fenchel.catalogue.entry import Verdict as Verdict
from fenchel.catalogue.entry import difference as difference
from fenchel.catalogue.parts import AbstractParts as AbstractParts
from fenchel.catalogue.parts import GaussianParts as GaussianParts
from fenchel.catalogue.parts import Parts as Parts
from fenchel.catalogue.parts import RelativeParts as RelativeParts
from fenchel.catalogue.parts import TransportParts as TransportParts
from fenchel.catalogue.registry import ENTRIES as ENTRIES
from fenchel.catalogue.registry import entry as entry

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
