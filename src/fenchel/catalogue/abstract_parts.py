"""What every kind of inference in the catalogue can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

from fenchel.closeness import AbstractCloseness
from fenchel.functional.inference import AttentionCertificate

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
        templates: (B, H, N, d), or (B, H, m, N, d) where they differ by query.
        evidence: (B, H, m, d).
        values: (B, H, N, d_v), or (B, H, m, N, d_v).
        log_preference: log u or a mask, broadcasting to (B, H, m, N); None is uniform.
    """

    templates: Tensor
    evidence: Tensor
    values: Tensor
    log_preference: Tensor | None

    @abstractmethod
    def weights(self, estimator: str = "first_order") -> Tensor:
        """The weights p of the values, (B, H, m, N)."""

    def believed(self) -> Tensor:
        """The preference u as weights, (B, H, m, N); all 0 where nothing may be looked at."""
        shape = (*self.evidence.shape[:3], self.templates.shape[-2])
        log_u = self.log_preference
        if log_u is None:
            return self.evidence.new_full(shape, 1 / shape[-1])
        if log_u.dtype == torch.bool:
            log_u = self.evidence.new_zeros(log_u.shape).masked_fill(~log_u, -torch.inf)
        return log_u.softmax(-1).nan_to_num(0.0).expand(shape)

    def mean_under(self, weights: Tensor) -> Tensor:
        """The mean of the values under weights (B, H, m, N), pair by pair: (B, H, m, d_v)."""
        values = self.values if self.values.dim() == 5 else self.values.unsqueeze(2)
        return (weights.unsqueeze(-1) * values).sum(-2)

    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """Half the sum of what weights differ by."""
        return (self.weights(estimator) - self.weights("exact")).abs().sum(-1) / 2
