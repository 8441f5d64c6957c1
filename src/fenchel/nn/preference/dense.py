"""Log-weights as tensors: functions of indices evaluated on a grid, and several of them put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["IndexFunction", "combined", "on_grid"]

IndexFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of the indices (b, h, q, k) of batch, head, query and key, each an integer tensor, often a scalar."""


def on_grid(function: IndexFunction, inputs: AttentionInputs, *, one_head: bool = False) -> Tensor:
    """All values of a function of indices, (B, H, m, n) with size 1 for every index that it does not read.

    Args:
        function: Of indices (b, h, q, k) that broadcast.
        inputs: Gives the ranges of the indices.
        one_head: Evaluate at head 0 alone, for a function that is the same for every head.
    """
    ranges = (inputs.batch, 1 if one_head else inputs.heads, inputs.queries, inputs.keys)
    grid = [
        torch.arange(size, device=inputs.device).reshape([-1 if axis == own else 1 for axis in range(4)])
        for own, size in enumerate(ranges)
    ]
    values = function(*grid)
    return values.reshape((1,) * (4 - values.dim()) + tuple(values.shape))


def combined(terms: Sequence[Tensor | None]) -> Tensor | None:
    """The product of preferences, given as log-weights, bool masks (True = attend) or None for uniform.

    Masks alone stay a mask; otherwise the log-weights add up, with -inf where a mask forbids.
    """
    given = [term for term in terms if term is not None]
    masks = [term for term in given if term.dtype == torch.bool]
    weights = [term for term in given if term.dtype != torch.bool]
    mask = reduce(torch.logical_and, masks) if masks else None
    if not weights:
        return mask
    # Small ones first, so that what is broadcast is added up before it is spread out.
    total = reduce(torch.add, sorted(weights, key=Tensor.numel))
    return total if mask is None else torch.where(mask, total, -torch.inf)
