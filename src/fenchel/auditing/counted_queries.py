"""The counted queries of one attention call, checked."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fenchel.auditing.heads import Kind
from fenchel.errors import ProblemError

__all__ = ["CountedQueries"]


class CountedQueries:
    """Takes the counted queries of one attention call out of (B, H, m), to (H, N) on the CPU."""

    def __init__(self, kind: Kind, layer: int, heads: Sequence[int], counted: Tensor) -> None:
        self._name = f"{kind} layer {layer}"
        self._heads = heads
        self._counted = counted
        self._columns = None if bool(counted.all()) else counted.flatten().nonzero().flatten()

    def select(self, tensor: Tensor) -> Tensor:
        """Those of a tensor (B, H, m), as (H, N) on the CPU."""
        by_head = tensor.detach().transpose(0, 1).flatten(1)
        if self._columns is not None:
            by_head = by_head.index_select(1, self._columns.to(by_head.device))
        return by_head.cpu().contiguous()

    def metric(self, name: str, tensor: Tensor) -> Tensor:
        """The values of a metric, float32; refuses NaN and negative numbers."""
        batch, count = self._counted.shape
        if tuple(tensor.shape) != (batch, len(self._heads), count):
            raise ProblemError(
                f"{name} of {self._name} has shape {tuple(tensor.shape)}, but counted {(batch, count)} and "
                f"{len(self._heads)} heads ask for {(batch, len(self._heads), count)}."
            )
        values = self.select(tensor).float()
        # The least of numbers with a NaN among them is NaN, which is not at least 0.
        if values.numel() and not bool(values.amin() >= 0):
            wrong = ~(values >= 0)
            row = int(wrong.any(dim=1).nonzero()[0])
            raise ProblemError(
                f"{name} is {float(values[row][wrong[row]][0])} for {int(wrong[row].sum())} of "
                f"{values.shape[1]} queries of {self._name} head {self._heads[row]}; it must be a "
                "non-negative number. Check the model for NaN weights, or audit with dtype float32."
            )
        return values
