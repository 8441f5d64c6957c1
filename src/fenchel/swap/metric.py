"""What an arm is measured by: a number from per-unit values and the weights of the units in a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.correlation import correlation, midranks, spearman

__all__ = ["AbstractMetric", "RankingAgreement", "ScoreCorrelation", "TokenMean"]


class AbstractMetric(ABC):
    """A number for each arm and each weighting of the units.

    Attributes:
        units: How many units there are to resample.
        lower_is_better: Whether less is better.
    """

    units: int
    lower_is_better: bool

    @abstractmethod
    def __call__(self, arm: str, weights: Tensor) -> Tensor:
        """The metric of an arm in every weighted sample.

        Args:
            arm: Key of the arm.
            weights: (R, N), how often each of R samples holds each unit.

        Returns:
            (R,) float64.
        """

    def of_all(self, arm: str) -> float:
        """The metric of an arm on all units."""
        return float(self(arm, torch.ones(1, self.units, dtype=torch.float64)))


@dataclass(frozen=True, eq=False)
class TokenMean(AbstractMetric):
    """Sum of a quantity over the units, divided by the sum of what it is counted in (tokens, for a loss).

    Attributes:
        sums: (N,) for each arm.
        counts: (N,), at least 0.
    """

    sums: Mapping[str, Tensor]
    counts: Tensor
    lower_is_better: bool = True

    @property
    def units(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """N."""
        return len(self.counts)

    def __call__(self, arm: str, weights: Tensor) -> Tensor:
        """See ``AbstractMetric``."""
        return weights @ self.sums[arm].to(torch.float64) / (weights @ self.counts.to(torch.float64))


@dataclass(frozen=True, eq=False)
class ScoreCorrelation(AbstractMetric):
    """Spearman's correlation of an arm's similarities with scores that people gave; the unit is a pair.

    Attributes:
        similarities: (N,) for each arm.
        scores: (N,).
    """

    similarities: Mapping[str, Tensor]
    scores: Tensor
    lower_is_better: bool = False

    @property
    def units(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """N."""
        return len(self.scores)

    def __call__(self, arm: str, weights: Tensor) -> Tensor:
        """See ``AbstractMetric``."""
        return spearman(self.similarities[arm], self.scores, weights)


@dataclass(frozen=True, eq=False)
class RankingAgreement(AbstractMetric):
    """Spearman's correlation of an arm's similarities of pairs with the model's own; the unit is a sentence.

    A sentence is in many pairs, so pairs are not drawn one by one: a pair counts as often as both of its sentences were
    drawn together, which is the product of their counts.

    Attributes:
        similarities: (P,) for each arm.
        model: Key of the model's own arm.
        pairs: (P, 2) numbers of the sentences.
        units: How many sentences.
    """

    similarities: Mapping[str, Tensor]
    model: str
    pairs: Tensor
    units: int
    lower_is_better: bool = False

    def __call__(self, arm: str, weights: Tensor) -> Tensor:
        """See ``AbstractMetric``."""
        first, second = self.pairs.T
        found = []
        # There are more pairs than sentences, so what fits in memory for sentences may not for pairs.
        for rows in weights.split(max(1, 4_000_000 // max(1, len(first)))):
            both = rows[:, first] * rows[:, second]
            own, other = (midranks(self.similarities[key], both) for key in (self.model, arm))
            found.append(correlation(own, other, both))
        return torch.cat(found)
