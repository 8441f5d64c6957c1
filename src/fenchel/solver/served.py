"""Which rows native kernels serve: those with a softmax response, in Gram coordinates, with one α for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.closeness.response import SoftmaxResponse
from fenchel.native import kernels
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates
from fenchel.solver.rows import Rows

__all__ = ["ServedRows", "served", "squared_norm"]


@dataclass(frozen=True)
class ServedRows:
    """What native kernels need of rows.

    Attributes:
        log_preference: log u, (g or 1, r or 1, n).
        rest: u, likewise.
        alpha: α.
    """

    log_preference: Tensor
    rest: Tensor
    alpha: float


def served(
    coordinates: AbstractCoordinates, rows: Rows, *arrays: Tensor, dtype: torch.dtype = torch.float32
) -> ServedRows | None:
    """What native kernels need of rows, or None where torch has to serve them.

    Args:
        coordinates: Those of the rows.
        rows: Their data.
        arrays: What else the pass reads, (g, r, n).
        dtype: What the arrays have to be.
    """
    response = rows.response
    if (
        not isinstance(coordinates, GramCoordinates)
        or not isinstance(response, SoftmaxResponse)
        or rows.alpha.numel() != 1
    ):
        return None
    shared = (response.log_preference, response.preference)
    if not kernels.serves(rows.evidence, *arrays, shared=shared, dtype=dtype):
        return None
    return ServedRows(*shared, float(rows.alpha))


def squared_norm(coordinates: AbstractCoordinates, x: Tensor, lifted: Tensor) -> Tensor:
    """Squared norms of vectors with coordinates x (g, r, size), given their lift, (g, r)."""
    if isinstance(coordinates, GramCoordinates) and kernels.serves(x, lifted):
        return kernels.products(x, lifted).clamp_(min=0)
    return coordinates.inner(x, x, lifted).clamp(min=0)
