"""Calls of attention for tests: shapes that broadcast in every way, and how to compare two gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ESTIMATORS = ("first_order", "second_order", "exact")
B, H, M, N, D = 2, 4, 5, 7, 3
PREFERENCES: list[tuple[int, ...] | None] = [
    None,
    (N,),
    (M, N),
    (B, 1, 1, N),
    (1, H, M, N),
    (H, 1, N),
    (B, H, M, N),
]
"""Shapes of preferences."""


def call(
    *,
    preference: tuple[int, ...] | None = None,
    alpha: tuple[int, ...] = (),
    key_heads: int = H,
    masked: float = 0.2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    batch: int = B,
    queries: int = M,
    keys: int = N,
    dim: int = D,
) -> dict[str, Any]:
    """Tensors of a call that all require gradients; in every row of the preference something is left."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=generator)

    tensors = {
        "query": normal(batch, H, queries, dim),
        "key": normal(batch, key_heads, keys, dim),
        "value": normal(batch, key_heads, keys, 2),
        "alpha": torch.rand(alpha, dtype=dtype, generator=generator) + 0.5,
        "scale": torch.tensor(0.8, dtype=dtype),
    }
    if preference is not None:
        hidden = torch.rand(preference, generator=generator) < masked
        hidden[..., 0] = False
        tensors["log_preference"] = normal(*preference).masked_fill(hidden, -torch.inf)
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def gradients(output: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of something nonlinear of the output, by name."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    found = torch.autograd.grad((output.sin() * weight).sum(), tuple(tensors.values()), retain_graph=True)
    return dict(zip(tensors, found, strict=True))


def directional_derivatives(function: Any, tensors: dict[str, Tensor], step: float = 1e-5) -> dict[str, Any]:
    """Of a function of one call: (numeric, analytic) along a random direction of each tensor by itself."""
    output = function(**tensors)
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    analytic = gradients(output, tensors)
    found: dict[str, Any] = {}
    with torch.no_grad():
        for index, (name, tensor) in enumerate(tensors.items()):
            generator = torch.Generator().manual_seed(index)
            direction = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
            ends = [
                (function(**{**tensors, name: tensor + side * step * direction}).sin() * weight).sum()
                for side in (1, -1)
            ]
            numeric = float(ends[0] - ends[1]) / (2 * step)
            found[name] = (numeric, float((analytic[name] * direction).nan_to_num().sum()))
    return found
