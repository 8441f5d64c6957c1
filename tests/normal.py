"""Normally distributed numbers in float64, the same for the same seed."""

import torch
from torch import Tensor


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
