"""Log-weights of evidence that knows places, pair by pair from the papers' formulas."""

from typing import Any

import torch
from torch import Tensor

from fenchel.nn.evidence import RelativeGridKeys, RelativeKeys, Rotary


def score(evidence: Any, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    """Of a key at place j for a query at place i, (B, H)."""
    dim = q.shape[-1]
    if isinstance(evidence, Rotary):
        angles = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

        def turned(vector: Tensor, place: int) -> Tensor:
            halves = evidence.layout == "halves"
            paired = vector.unflatten(-1, (2, -1)).mT if halves else vector.unflatten(-1, (-1, 2))
            return torch.view_as_complex(paired.contiguous()) * torch.exp(1j * angles * place)

        return (turned(q, i) * turned(k, j).conj()).real.sum(-1) / dim**0.5
    if isinstance(evidence, RelativeKeys):
        clipped = max(-evidence.max_distance, min(evidence.max_distance, j - i))
        return (q * (k + evidence.weight[:, clipped + evidence.max_distance])).sum(-1) / dim**0.5
    if isinstance(evidence, RelativeGridKeys):
        (_, width), reach = evidence.grid, evidence.reach
        steps = j // width - i // width, j % width - i % width
        down, across = (max(-reach, min(reach, step)) + reach for step in steps)
        return (q * (k + torch.cat((evidence.rows[:, down], evidence.columns[:, across]), -1))).sum(-1)
    half = evidence.distance_weight.shape[-1] // 2
    code = (i - j) * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    r = evidence.distance_weight @ torch.cat((code.sin(), code.cos()))
    u, v = evidence.key_importance, evidence.distance_importance
    return ((q + u) * k + (q + v) * r).sum(-1) / dim**0.5


def scores(evidence: Any, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
    """Of all keys for all queries, the first of which is at the place ``first``, (B, H, m, n)."""
    rows = [
        torch.stack([score(evidence, q, k, i + first, j) for j, k in enumerate(key.unbind(2))], -1)
        for i, q in enumerate(query.unbind(2))
    ]
    return torch.stack(rows, -2)
