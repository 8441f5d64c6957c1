"""Counts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.preference.parameters import checked_parameter
from fenchel.preference.product import AbstractProduct

__all__ = ["Poisson"]


class Poisson(AbstractProduct):
    r"""Independent counts with rates ν.

    .. math:: \kappa(\lambda) = \nu(e^\lambda - 1), \qquad p(\lambda) = \operatorname{Poisson}(\nu e^\lambda)

    The cumulant is finite everywhere, and beyond what a dtype holds soon: from where it is, λ is treated as outside.

    Args:
        rate: ν > 0, shape (d,) for all queries, or (..., m or 1, d).

    Raises:
        ProblemError: On shapes, dtypes and entries that do not fit.

    Example:
        >>> u = Poisson(torch.tensor([2.0, 0.5]))
        >>> u.tilted(torch.tensor([[0.0, 1.0]])).rate
        tensor([[2.0000, 1.3591]])
    """

    parameters = ("rate",)

    rate: Tensor

    def __init__(self, rate: Tensor) -> None:
        self._set(rate=checked_parameter("rate", rate, "(d,) or (..., m, d)", above=0.0))

    @override
    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        # Half of the exponents of the dtype: squares of the mean, of which norms are made, are finite too.
        return None, math.log(torch.finfo(self.dtype).max) / 2 - self.rate.log()

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        # e^λ - 1 = (e^(λ/2) - 1)(e^(λ/2) + 1): a tiny rate admits a λ whose own exponential is not finite.
        half = torch.expm1(lam / 2)
        return self.rate * half * (half + 2)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self._tilted_rate(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.cumulant(lam)

    @override
    def variance(self, lam: Tensor) -> Tensor:
        return self._tilted_rate(lam)

    def _tilted_rate(self, lam: Tensor) -> Tensor:
        root = (lam / 2).exp()
        return self.rate * root * root

    @override
    def lost(self, lam: Tensor) -> Tensor:
        return self.tilted_shift(lam).abs()

    @override
    def _tilted(self, lam: Tensor) -> Poisson:
        return self._like(rate=self._tilted_rate(lam))

    @override
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Without gradient: counts do not change by a little."""
        return torch.poisson(self.rate.detach().expand(shape), generator=generator)

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        known = (points >= 0) & (points == points.floor())
        count = points.where(known, 0)
        return torch.where(
            known, torch.xlogy(count, self.rate) - self.rate - torch.lgamma(count + 1), -torch.inf
        )
