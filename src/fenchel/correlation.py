"""Spearman's rank correlation with ties, in thousands of weighted resamples of one sample at once.

scipy's ``spearmanr`` has no weights, which a bootstrap of pairs of resampled sentences needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_FEWEST_RANKS = 3


def midranks(values: Tensor, weights: Tensor) -> Tensor:
    """Ranks from 1 in a sample that holds each value as often as its weight says; equal values share their average.

    A resample with replacement is the same values with other weights, so the values are sorted once for all of them.

    Args:
        values: (N,).
        weights: Number of times that each of R samples holds each value, (R, N).

    Returns:
        The rank that a value has, or would have, in each sample, (R, N) float64.

    Example:
        >>> midranks(torch.tensor([30.0, 10.0, 10.0]), torch.ones(1, 3)).tolist()
        [[3.0, 1.5, 1.5]]
    """
    group = values.unique(return_inverse=True)[1]
    # One sample in each column, so that whole rows are added, which is several times faster.
    held = weights.to(torch.float64).T
    count = held.new_zeros(int(group.max()) + 1, held.shape[1]).index_add_(0, group, held)
    return count.cumsum(0).sub_(count.sub_(1).div_(2))[group].T


def correlation(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Pearson's correlation of x and y in each of R weighted samples.

    Args:
        x: (R, N) or (N,).
        y: (R, N) or (N,).
        weights: (R, N), at least 0.

    Returns:
        (R,) float64; NaN where x or y is constant in a sample.
    """
    weights = weights.to(torch.float64)
    total = weights.sum(1, keepdim=True)
    x = x - (weights * x).sum(1, keepdim=True) / total
    y = y - (weights * y).sum(1, keepdim=True) / total
    spread = (weights * x * x).sum(1) * (weights * y * y).sum(1)
    return torch.where(spread > 0, (weights * x * y).sum(1) / spread.sqrt(), torch.nan)


def spearman(x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Spearman's rank correlation, the correlation of average ranks.

    Args:
        x: (N,).
        y: (N,).
        weights: Number of times that each of R samples holds each pair, (R, N). Default: one sample with each once.

    Returns:
        (R,) float64; NaN where x or y is constant in a sample.

    Reference:
        C. Spearman, The proof and measurement of association between two things, 1904.

    Example:
        >>> round(float(spearman(torch.tensor([1.0, 2.0, 2.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))), 4)
        0.9487
    """
    weights = torch.ones(1, len(x), dtype=torch.float64) if weights is None else weights
    return correlation(midranks(x, weights), midranks(y, weights), weights)


def rank_correlation(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Spearman's rank correlation of pairs in which both are known; None for fewer than three, or where it is NaN.

    Example:
        >>> rank_correlation([(1.0, 2.0), (2.0, 3.0), (4.0, 9.0), (math.nan, 1.0)]), rank_correlation([(1.0, 2.0)])
        (1.0, None)
    """
    known = [pair for pair in pairs if not any(one is None or math.isnan(one) for one in pair)]
    if len(known) < _FEWEST_RANKS:
        return None
    result = float(spearman(*torch.tensor(known, dtype=torch.float64).T))
    return None if math.isnan(result) else result
