"""The counted queries of one attention call, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fenchel.auditing.heads import METRICS, Kind
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
        """Those of a tensor (..., B, H, m), as (..., H, N) on the CPU."""
        by_head = tensor.detach().transpose(-3, -2).flatten(-2)
        if self._columns is not None:
            by_head = by_head.index_select(-1, self._columns.to(by_head.device))
        return by_head.cpu().contiguous()

    def metrics(self, values: Mapping[str, Tensor]) -> Tensor:
        """The values of each of ``METRICS``, float32, (metrics, H, N); refuses NaN and negative numbers."""
        batch, count = self._counted.shape
        expected = (batch, len(self._heads), count)
        for name in METRICS:
            if tuple(values[name].shape) != expected:
                raise ProblemError(
                    f"{name} of {self._name} has shape {tuple(values[name].shape)}, but counted {(batch, count)} and "
                    f"{len(self._heads)} heads ask for {expected}."
                )
        found = self.select(torch.stack([values[name] for name in METRICS])).float()
        # The least of numbers with a NaN among them is NaN, which is not at least 0.
        if found.numel() and not bool(found.amin() >= 0):
            wrong = ~(found >= 0)
            metric, row = wrong.any(-1).nonzero()[0].tolist()
            of_head, there = found[metric, row], wrong[metric, row]
            raise ProblemError(
                f"{METRICS[metric]} is {float(of_head[there][0])} for {int(there.sum())} of {len(of_head)} queries of "
                f"{self._name} head {self._heads[row]}; it must be a non-negative number. Check the model for NaN "
                "weights, or audit with dtype float32."
            )
        return found
