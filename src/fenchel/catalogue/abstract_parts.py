"""What every kind of inference in the catalogue can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor

from fenchel.closeness import AbstractCloseness
from fenchel.functional.certificate import AttentionCertificate

__all__ = ["AbstractFiniteParts", "AbstractParts"]


class AbstractParts(ABC):
    """Inferences, one a query, (B, H, m) of them."""

    @abstractmethod
    def answer(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""

    @abstractmethod
    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """What an estimate certifies about itself, each (B, H, m)."""

    @abstractmethod
    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """How far the inferred distribution is from the exact one, from 0 to 1, (B, H, m)."""

    def under(self, closeness: AbstractCloseness | None) -> Self:
        """The same under a closeness, where it leaves its own open."""
        del closeness
        return self


class AbstractFiniteParts(AbstractParts):
    """Inferences whose answer is a list of weights.

    Attributes:
        values: (B, H, N, d_v), or (B, H, m, N, d_v) where they differ by query.
    """

    values: Tensor

    @abstractmethod
    def weights(self, estimator: str = "first_order") -> Tensor:
        """The weights p of the values, (B, H, m, N)."""

    def mean_under(self, weights: Tensor) -> Tensor:
        """The mean of the values under weights (B, H, m, N), pair by pair: (B, H, m, d_v)."""
        values = self.values if self.values.dim() == 5 else self.values.unsqueeze(2)
        return (weights.unsqueeze(-1) * values).sum(-2)

    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """Half the sum of what weights differ by."""
        return (self.weights(estimator) - self.weights("exact")).abs().sum(-1) / 2
