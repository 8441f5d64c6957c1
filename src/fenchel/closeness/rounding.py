r"""What sums in float64 may lose, in units of its rounding."""

from __future__ import annotations

import math

__all__ = ["LINEAR", "SMALL", "UNIT", "summed"]

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
