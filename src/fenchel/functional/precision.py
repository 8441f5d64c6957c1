"""In which dtype an op computes, whatever dtype it is given."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["compute_dtype", "under_autocast", "without_autocast"]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for float32 and the half types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def under_autocast(tensor: Tensor) -> Tensor:
    """The tensor as autocast would hand it to torch's own attention."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which casts are ours: what is computed in float32 here must not be cast to half."""
    return torch.autocast(tensor.device.type, enabled=False)
