r"""The deformed logarithm of Tsallis' entropies, and how it changes with its order.

.. math:: \ln_a r = \frac{r^a - 1}{a}, \qquad \ln_0 r = \log r, \qquad a = \beta - 1,

whose inverse is :math:`\exp_a(s) = [1 + as]_+^{1/a}`. Written in :math:`x = \log r` both are smooth in a down to 0,
where the quotients are evaluated by their series.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["deformed_difference", "deformed_log", "log_of_positive", "slope_of_deformed_log"]

SERIES_UP_TO = 0.5
"""Arguments of quotients below this, in size, are for their series: beyond it less than a digit cancels."""

_TERMS = 16
"""Terms of a series: at the largest argument what is left out is below float64's rounding."""

_RISE = [1 / math.factorial(j + 1) for j in range(_TERMS)]
_SLOPE = [(j + 1) / math.factorial(j + 2) for j in range(_TERMS)]


def _series(y: Tensor, coefficients: list[float]) -> Tensor:
    found = torch.full_like(y, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * y + coefficient
    return found


def _quotient(y: Tensor, coefficients: list[float], numerator: Tensor, power: int) -> Tensor:
    """A numerator over a power of y, by its series where y is small."""
    small = y.abs() < SERIES_UP_TO
    by_series = _series(torch.where(small, y, 0), coefficients)
    return torch.where(small, by_series, numerator / torch.where(small, 1, y).pow(power))


def deformed_log(log_r: Tensor, a: Tensor | float) -> Tensor:
    r""":math:`\ln_a r` given :math:`\log r`, which is finite.

    Example:
        >>> r = torch.tensor([0.5, 2.0], dtype=torch.float64)
        >>> deformed_log(r.log(), 1.0), deformed_log(r.log(), 0.0)         # r - 1 and log r
        (tensor([-0.5000,  1.0000], dtype=torch.float64), tensor([-0.6931,  0.6931], dtype=torch.float64))
    """
    y = a * log_r
    return log_r * _quotient(y, _RISE, torch.expm1(y), 1)


def slope_of_deformed_log(log_r: Tensor, a: Tensor | float) -> Tensor:
    r""":math:`\partial_a \ln_a r = (a\, r^a \log r - (r^a - 1))/a^2`, which is :math:`\tfrac12\log^2 r` at a = 0."""
    y = a * log_r
    return log_r.square() * _quotient(y, _SLOPE, y * y.exp() - torch.expm1(y), 2)


def deformed_difference(log_p: Tensor, log_u: Tensor, a: Tensor | float) -> Tensor:
    r""":math:`(p^a - u^a)/a`, without cancellation where p is near u and without overflow where u is tiny."""
    # Where u^a is small its reciprocal may overflow, and p^a - u^a loses nothing.
    far = a * log_u < -1
    near = (a * log_u).exp() * deformed_log(torch.where(far, 0, log_p - log_u), a)
    return torch.where(far, deformed_log(log_p, a) - deformed_log(log_u, a), near)


def log_of_positive(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Where weights are above 0, and their logarithms there, 0 elsewhere: with gradients that are finite."""
    positive = weights > 0
    return positive, torch.where(positive, weights, 1).log()
