"""What a mechanism answered, and the inferences that it made on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fenchel.catalogue.abstract_parts import AbstractFiniteParts, AbstractParts
from fenchel.closeness import AbstractCloseness

__all__ = ["Answer", "Inferrer"]

P = TypeVar("P", bound=AbstractParts)


class Inferrer:
    """Answers the inferences of a mechanism, all in one way, and keeps what was asked.

    Args:
        estimator: Of all inferences.
        closeness: Of those that leave theirs open; None is Kullback and Leibler's.
    """

    def __init__(self, estimator: str = "first_order", closeness: AbstractCloseness | None = None) -> None:
        self.estimator, self.closeness = estimator, closeness
        self.asked: list[AbstractParts] = []

    def __call__(self, parts: AbstractParts) -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        return self._kept(parts).answer(self.estimator)

    def weights(self, parts: AbstractFiniteParts) -> Tensor:
        """The weights, (B, H, m, n), for a mechanism that uses them otherwise than for a mean of values."""
        return self._kept(parts).weights(self.estimator)

    def _kept(self, parts: P) -> P:
        parts = parts.under(self.closeness)
        self.asked.append(parts)
        return parts


@dataclass(frozen=True)
class Answer:
    """What came of running an entry.

    Attributes:
        output: As the mechanism shapes it.
        estimator: By which its inferences were answered.
        inferences: In the order in which they were made, each a :class:`Parts` or of another kind of
            :class:`AbstractParts`; none where the mechanism makes none.
    """

    output: Tensor
    estimator: str
    inferences: tuple[Any, ...]

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights of each inference that has some, (B, H, m, n): all but those under a Gaussian preference."""
        finite = (parts for parts in self.inferences if isinstance(parts, AbstractFiniteParts))
        return tuple(parts.weights(self.estimator) for parts in finite)

    @property
    def gap(self) -> float:
        """The largest duality gap of any query of any inference; the weights are within √(gap/2) of the exact ones."""
        gaps = [parts.certificate(self.estimator).gap.max() for parts in self.inferences]
        return float(torch.stack(gaps).max()) if gaps else 0.0
