r"""Norms of any size, what sums may lose to rounding, and differences of weights that do not cancel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fenchel.tensors import is_on_host

__all__ = ["LINEAR", "SMALL", "UNIT", "dot", "near_displacement", "norm", "reference_norm", "summed", "total"]

UNIT = 2.0**-53
"""Largest relative error of one operation in float64."""

SMALL = 0.5
"""Potentials up to this, in units of the modulus, move the weights by less than cancellation would leave of them."""


LINEAR = 0.1
"""Errors of logarithms up to this are errors of what they are the logarithms of, to a tenth."""


SQUARED = (1e-15, 1e15)
"""Lengths whose squares float32 holds."""


def norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, kept, which neither under- nor overflows."""
    if x.dtype != torch.float64:
        if is_on_host(x):
            found = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            if bool(((found > SQUARED[0]) & (found < SQUARED[1])).all()):
                return found
        # float64 holds the squares of all narrower numbers.
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64).to(x.dtype)
    top = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.linalg.vector_norm(x / top, dim=-1, keepdim=True) * top


def reference_norm(length: Tensor, first_order: Tensor) -> Tensor:
    r"""What a relative tolerance is relative to: ‖λ‖, or ‖αz‖ where λ is zero to rounding."""
    rounding = 16 * torch.finfo(length.dtype).eps
    return torch.where(length > rounding * first_order, length, first_order)


def total(x: Tensor) -> Tensor:
    """Sum over the last dimension, kept."""
    return x.sum(-1, keepdim=True)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, kept."""
    return torch.linalg.vecdot(x, y).unsqueeze(-1)


def summed(count: int) -> float:
    r"""By how many units a sum or inner product of ``count`` terms may be off, relative to the sum of their sizes.

    At most ``count``, the worst case, and beyond 16 terms :math:`8 + 2\sqrt{\mathtt{count}}`: at least three standard
    deviations of independent roundings one after another, six and more where terms are of like size (in the manner of
    Higham and Mary, 2019). Bounds on such sums are statistical and no worst cases.
    """
    return min(float(count), 8 + 2 * math.sqrt(count))


def near_displacement(potential: Tensor, preference: Tensor) -> Tensor:
    r"""What a small potential (..., m, n) adds to u, to rounding relative to itself.

    .. math:: p_i - u_i = u_i\,\frac{e_i - \langle u, e\rangle}{1 + \langle u, e\rangle}, \qquad e = e^f - 1
    """
    e = torch.expm1(potential)
    mass = (preference * e).sum(-1, keepdim=True)
    return preference * (e - mass) / (1 + mass)
