"""How related two sentences are, from 1 to 5, as a distribution over the whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["DEGREES", "degree_distribution", "expected_degree"]

DEGREES = 5
"""Relatedness is a distribution over 1, ..., 5."""


def expected_degree(logits: Tensor) -> Tensor:
    """The relatedness that a distribution over 1 to 5 expects.

    Args:
        logits: (..., 5).

    Example:
        >>> expected_degree(torch.zeros(5)).item()
        3.0
    """
    return (logits.softmax(-1) * _degrees(logits)).sum(-1)


def degree_distribution(degrees: Tensor) -> Tensor:
    """The distribution over 1, ..., 5 on the two whole numbers around a degree, whose mean is the degree.

    Args:
        degrees: From 1 to 5, (b,).

    Returns:
        (b, 5).

    Reference:
        Tai et al. 2015, Improved semantic representations from tree-structured LSTMs, equation (16).

    Example:
        >>> degree_distribution(torch.tensor([3.5, 5.0])).tolist()
        [[0.0, 0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    """
    return (1 - (degrees.unsqueeze(-1) - _degrees(degrees)).abs()).clamp_min(0.0)


def _degrees(like: Tensor) -> Tensor:
    return torch.arange(1, DEGREES + 1, device=like.device, dtype=like.dtype)
