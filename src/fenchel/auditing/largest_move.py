"""For every query the key whose weight differs most between attention and the exact answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.layer import LayerProblem

__all__ = ["LargestMoveSearch", "LargestMoves"]


@dataclass(frozen=True)
class LargestMoves:
    """The largest move of every query; meaningless where a query is not counted.

    Attributes:
        positions: Position of the key from 0, the first of equals, (batch, heads, m).
        changes: Its exact weight minus attention's, (batch, heads, m).
    """

    positions: Tensor
    changes: Tensor


class LargestMoveSearch:
    """Finds them while blocks of queries go by.

    Args:
        problem: The layer.
    """

    def __init__(self, problem: LayerProblem) -> None:
        shape = problem.queries.shape[:3]
        self._positions = torch.zeros(shape, dtype=torch.int64, device=problem.queries.device)
        self._changes = problem.queries.new_zeros(shape)

    def look(self, where: tuple[slice, slice, slice], first_order: Tensor, exact: Tensor) -> None:
        """Look at a block of queries.

        Args:
            where: Its groups, heads and queries.
            first_order: Attention's weights, (g, h * q, n).
            exact: The exact ones.
        """
        change = exact - first_order
        position = change.abs().argmax(-1)
        shape = self._positions[where].shape
        self._positions[where] = position.reshape(shape)
        self._changes[where] = (
            change.gather(-1, position.unsqueeze(-1)).reshape(shape).to(self._changes.dtype)
        )

    def found(self, problem: LayerProblem) -> LargestMoves:
        """Those of all blocks."""
        return LargestMoves(problem.by_head(self._positions), problem.by_head(self._changes))
