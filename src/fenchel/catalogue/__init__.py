"""The mechanisms of the field, each written as inference: templates, preference, evidence, closeness."""

from fenchel.catalogue.abstract_parts import AbstractParts as AbstractParts
from fenchel.catalogue.answer import Answer as Answer
from fenchel.catalogue.answer import Inferrer as Inferrer
from fenchel.catalogue.difference import Difference as Difference
from fenchel.catalogue.difference import difference as difference
from fenchel.catalogue.entry import Entry as Entry
from fenchel.catalogue.entry import Paper as Paper
from fenchel.catalogue.entry import Symmetry as Symmetry
from fenchel.catalogue.gaussian_parts import GaussianParts as GaussianParts
from fenchel.catalogue.parts import Parts as Parts
from fenchel.catalogue.registry import ENTRIES as ENTRIES
from fenchel.catalogue.registry import FAMILIES as FAMILIES
from fenchel.catalogue.registry import NOTES as NOTES
from fenchel.catalogue.registry import entry as entry
from fenchel.catalogue.relative_parts import RelativeParts as RelativeParts
from fenchel.catalogue.transport_parts import TransportParts as TransportParts
from fenchel.catalogue.verdict import Verdict as Verdict

__all__ = [
    "ENTRIES",
    "FAMILIES",
    "NOTES",
    "AbstractParts",
    "Answer",
    "Difference",
    "Entry",
    "GaussianParts",
    "Inferrer",
    "Paper",
    "Parts",
    "RelativeParts",
    "Symmetry",
    "TransportParts",
    "Verdict",
    "difference",
    "entry",
]
