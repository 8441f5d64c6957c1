"""Rows of queries as a solver sees them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fenchel.blocks import QueryBlock

__all__ = ["Rows"]


@dataclass(frozen=True)
class Rows:
    """The data of r queries in each of g groups; a dimension of size 1 is shared.

    Attributes:
        log_preference: log u, (g or 1, r or 1, n), normalised.
        preference: u.
        alpha: α, (g or 1, r or 1, 1).
        evidence: The evidence in the coordinates' own terms: scores Tz (g, r, n), up to a constant a row, in Gram
            coordinates; z (g, r, size) in template coordinates.
        evidence_square: ‖z‖², (g, r, 1).
    """

    log_preference: Tensor
    preference: Tensor
    alpha: Tensor
    evidence: Tensor
    evidence_square: Tensor

    @classmethod
    def of(cls, block: QueryBlock, evidence: Tensor) -> Rows:
        """The rows of a block, given their evidence in coordinates."""
        square = block.evidence.square().sum(-1, keepdim=True)
        return cls(block.log_preference, block.log_preference.softmax(-1), block.alpha, evidence, square)
