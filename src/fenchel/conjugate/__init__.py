"""The convex function φ(λ) = D*(Tλ): all that the dual sees of a preference and a closeness."""

from fenchel.conjugate.abstract import AbstractConjugate as AbstractConjugate
from fenchel.conjugate.finite import FiniteConjugate as FiniteConjugate
from fenchel.conjugate.joining import conjugate_of as conjugate_of
from fenchel.conjugate.log_partition import LogPartition as LogPartition

__all__ = ["AbstractConjugate", "FiniteConjugate", "LogPartition", "conjugate_of"]
