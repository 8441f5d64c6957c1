"""Log-weights as tensors: functions of indices evaluated on a grid, and several of them put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["IndexFunction", "combined", "on_diagonals", "on_grid"]

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
    values = function(
        *(_axis(own, torch.arange(size, device=inputs.device)) for own, size in enumerate(ranges))
    )
    return values.reshape((1,) * (4 - values.dim()) + tuple(values.shape))


def on_diagonals(function: IndexFunction, inputs: AttentionInputs, *, one_head: bool = False) -> Tensor:
    """:func:`on_grid` for a function that reads neither b nor more of q and k than k - q: evaluated m + n - 1 times.

    Args:
        function: Of indices (b, h, q, k) that broadcast, and of k - q for negative k too.
        inputs: Gives the ranges of the indices.
        one_head: Evaluate at head 0 alone, for a function that is the same for every head.
    """
    m, n = inputs.queries, inputs.keys
    if m == 0 or n == 0:
        return on_grid(function, inputs, one_head=one_head)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=inputs.device)
    heads = _axis(1, torch.arange(1 if one_head else inputs.heads, device=inputs.device))
    distances = _axis(3, torch.arange(1 - m, n, device=inputs.device))
    values = function(zero, heads, zero, distances).squeeze(2)
    # Row i is the window of n distances that begins at -i.
    return _skewed(values, m, n) if torch.compiler.is_compiling() else values.unfold(-1, n, 1).flip(-2)


def _skewed(values: Tensor, m: int, n: int) -> Tensor:
    """The same windows (..., m, n) of (..., m + n - 1) values, for sizes that may be symbols in a graph.

    Under one another and read as rows that are one shorter, copies of the values move by one from row to row. A
    compiler makes one expression of that, where eager makes an array twice as large as the result.
    """
    copies = torch.nn.functional.pad(values, (0, 1)).unsqueeze(-2).expand(*values.shape[:-1], m, -1)
    shifted = copies.flatten(-2)[..., m - 1 : m - 1 + m * (m + n - 1)]
    return shifted.unflatten(-1, (m, m + n - 1))[..., :n]


def _axis(own: int, indices: Tensor) -> Tensor:
    return indices.reshape([-1 if axis == own else 1 for axis in range(4)])


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
    if not torch.compiler.is_compiling():
        # Small ones first, so that what is broadcast is added up before it is spread out. A compiler knows by itself,
        # and its sizes may be symbols.
        weights.sort(key=Tensor.numel)
    total = reduce(torch.add, weights)
    return total if mask is None else torch.where(mask, total, -torch.inf)
