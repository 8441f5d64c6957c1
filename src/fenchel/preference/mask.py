"""Masks in the place of log preferences: bool, True where a template may have weight."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["log_weights", "may_attend"]


def may_attend(preference: Tensor) -> Tensor:
    """Where a log preference or a mask gives weight, bool."""
    return preference if preference.dtype == torch.bool else ~torch.isneginf(preference)


def log_weights(preference: Tensor, dtype: torch.dtype) -> Tensor:
    """A log preference in a dtype, or what a mask is as one.

    Example:
        >>> log_weights(torch.tensor([True, False]), torch.float64)
        tensor([0., -inf], dtype=torch.float64)
    """
    if preference.dtype != torch.bool:
        return preference.to(dtype)
    return torch.zeros_like(preference, dtype=dtype).masked_fill_(~preference, -torch.inf)
