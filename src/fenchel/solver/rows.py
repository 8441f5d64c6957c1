"""Rows of queries as Newton's method sees them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fenchel.blocks import AbstractBlock
from fenchel.closeness.response import AbstractResponse

__all__ = ["Rows"]


@dataclass(frozen=True)
class Rows:
    """The data of r queries in each of g groups; a dimension of size 1 is shared.

    Attributes:
        response: How weights respond to potentials.
        rest: The weights at rest, (g or 1, r or 1, n).
        alpha: α, (g or 1, r or 1, 1).
        evidence: The evidence in the coordinates' own terms: scores Tz (g, r, n), up to a constant a row, in Gram
            coordinates; z (g, r, size) in the others.
        evidence_square: ‖z‖², (g, r, 1).
    """

    response: AbstractResponse
    rest: Tensor
    alpha: Tensor
    evidence: Tensor
    evidence_square: Tensor

    @classmethod
    def of(cls, block: AbstractBlock, evidence: Tensor, response: AbstractResponse | None = None) -> Rows:
        """The rows of a block, given their evidence in coordinates; with a response in place of the block's."""
        response = block.response if response is None else response
        square = block.evidence.square().sum(-1, keepdim=True)
        return cls(response, response.rest, block.alpha, evidence, square)
