"""How good a model is at saying how related two sentences are: correlation and error from sums, and of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fenchel.runs.spearman import spearman

__all__ = ["MOMENTS", "moments_of", "pearson", "rank_correlation"]

MOMENTS = ("scored", "said", "true", "said_squared", "true_squared", "product", "squared_difference")
"""Sums over examples, from which correlation and error follow."""

_CENTRE = 3.0


def moments_of(said: Tensor, true: Tensor) -> dict[str, Tensor]:
    """The sums of ``MOMENTS`` over some examples, in float64 and around the middle of the scale.

    Args:
        said: What a model expects, (b,).
        true: What people said, (b,).
    """
    one, other = said.double() - _CENTRE, true.double() - _CENTRE
    sums = (
        torch.ones_like(one), one, other, one.square(), other.square(), one * other, (one - other).square()
    )  # fmt: skip
    return {name: values.sum() for name, values in zip(MOMENTS, sums, strict=True)}


def pearson(sums: Mapping[str, float]) -> float:
    """Pearson's correlation from the sums of ``MOMENTS``; 0 where either does not vary.

    Example:
        >>> said, true = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 3.0, 5.0])
        >>> round(pearson({name: value.item() for name, value in moments_of(said, true).items()}), 6)
        1.0
    """
    count = sums["scored"]
    spread = [
        max(sums[f"{name}_squared"] / count - (sums[name] / count) ** 2, 0.0) for name in ("said", "true")
    ]
    together = sums["product"] / count - sums["said"] * sums["true"] / count**2
    if min(spread) <= 0.0:
        return 0.0
    return max(-1.0, min(1.0, together / (spread[0] * spread[1]) ** 0.5))


def rank_correlation(said: Tensor, true: Tensor) -> float:
    """Spearman's correlation of what a model expects and what people said, (N,) each; 0 where either does not vary.

    Example:
        >>> rank_correlation(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2.0, 3.0, 5.0]))
        1.0
    """
    found = float(spearman(said, true))
    return 0.0 if math.isnan(found) else max(-1.0, min(1.0, found))
