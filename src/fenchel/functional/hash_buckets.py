"""Buckets of vectors, such that those of vectors in similar directions are often the same."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from fenchel.arguments.tensor import check_device, check_tensor
from fenchel.errors import ProblemError

__all__ = ["hash_buckets"]

_BLOCK_ENTRIES = 2**17
"""How many products are looked at at once, so that they stay in a cache."""


def hash_buckets(vectors: Tensor, rotations: Tensor) -> Tensor:
    r"""Angular hashing: the axis, of some at random and their opposites, to which a vector is nearest.

    .. math:: h(x) = \arg\max\,[xR;\, -xR]

    It does not depend on the length of x. No gradient passes.

    Args:
        vectors: (B, H, n, d).
        rotations: R of every head and round, (H or 1, d, rounds, buckets / 2), with independent normal entries.

    Returns:
        The bucket of every vector in every round, int64 (B, H, rounds, n), from 0 to buckets - 1.

    Raises:
        ProblemError: On shapes, dtypes and devices that do not fit.

    Reference:
        Kitaev et al. 2020, Reformer: the efficient transformer, section 2 (Andoni et al. 2015).

    Example:
        >>> x, rotations = torch.randn(1, 2, 10, 4), torch.randn(2, 4, 3, 8)
        >>> buckets = hash_buckets(x, rotations)
        >>> buckets.shape, bool((buckets == hash_buckets(5 * x, rotations)).all())
        (torch.Size([1, 2, 3, 10]), True)
    """
    check_tensor("vectors", vectors, "(batch, heads, tokens, dim)", dims=4)
    form = "(heads or 1, dim, rounds, buckets / 2)"
    check_tensor("rotations", rotations, form, dims=4)
    check_device("rotations", rotations, vectors.device, "vectors")
    heads, dim = vectors.shape[1], vectors.shape[3]
    if rotations.shape[0] not in (1, heads) or rotations.shape[1] != dim or 0 in rotations.shape[2:]:
        raise ProblemError(
            f"rotations have shape {tuple(rotations.shape)}; expected {form} with {heads} heads and dim {dim}, as "
            f"vectors {tuple(vectors.shape)} have, and at least one round and two buckets: draw them with torch.randn"
        )
    with torch.no_grad():
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        axes = rotations.to(dtype).flatten(2)
        rows = max(1, _BLOCK_ENTRIES // axes.shape[2])
        found = vectors.new_empty(*vectors.shape[:3], rotations.shape[2], dtype=torch.int64)
        for b, h, start in product(range(vectors.shape[0]), range(heads), range(0, vectors.shape[2], rows)):
            some = slice(start, start + rows)
            turned = vectors[b, h, some].to(dtype) @ axes[h % axes.shape[0]]
            found[b, h, some] = _nearest(turned.unflatten(-1, tuple(rotations.shape[2:])))
        return found.transpose(-1, -2)


def _nearest(turned: Tensor) -> Tensor:
    """The index of the largest of [xR; -xR]: that of |xR|, or its opposite."""
    axis = turned.abs().argmax(-1, keepdim=True)
    opposite = turned.gather(-1, axis) < 0
    return (axis + opposite * turned.shape[-1]).squeeze(-1)
