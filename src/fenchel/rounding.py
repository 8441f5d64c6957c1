r"""What sums may lose to rounding, and differences of weights that do not cancel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["LINEAR", "SMALL", "UNIT", "near_displacement", "summed"]

UNIT = 2.0**-53
"""Largest relative error of one operation in float64."""

SMALL = 0.5
"""Potentials up to this, in units of the modulus, move the weights by less than cancellation would leave of them."""


LINEAR = 0.1
"""Errors of logarithms up to this are errors of what they are the logarithms of, to a tenth."""


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
