"""Positive numbers with an exponential tail."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.preference.product import AbstractProduct, pair

__all__ = ["Gamma"]


class Gamma(AbstractProduct):
    r"""Independent positive coordinates with concentration a and rate β; exponential ones where a = 1.

    .. math:: \kappa(\lambda) = -a\log(1 - \lambda/\beta), \quad \lambda < \beta, \qquad
              p(\lambda) = \operatorname{Gamma}(a, \beta - \lambda)

    The cumulant is finite for λ < β only. There the exact estimator stays; where first or second order leave it,
    :class:`~fenchel.DomainError` says for which α they do not.

    Args:
        concentration: a > 0, shape (d,) for all queries, or (..., m or 1, d), or a number.
        rate: β > 0, likewise; one of both is a tensor.

    Raises:
        ProblemError: On shapes, dtypes and entries that do not fit.

    Example:
        >>> from fenchel import InferenceProblem
        >>> problem = InferenceProblem(Gamma(2.0, torch.tensor([1.0])), torch.tensor([[3.0]]), alpha=1.0)
        >>> problem.solve("exact", tol=1e-4).distribution.rate       # mean 2 / rate between 2 and 2 + 3
        tensor([[0.4495]])
        >>> problem.solve("first_order")
        Traceback (most recent call last):
        fenchel.errors.DomainError: first_order puts the dual point of 1 of 1 queries where log M of the Gamma ...
    """

    parameters = ("concentration", "rate")

    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: float | Tensor, rate: float | Tensor) -> None:
        names = ("concentration", "rate")
        concentration, rate = pair((names[0], concentration), (names[1], rate), positive=names)
        self._set(concentration=concentration, rate=rate)

    @override
    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        return None, self.rate

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        # Near the end λ/β would round 1 - λ/β away, where β - λ is exact.
        share = lam / self.rate
        far = share > 0.5
        near = -torch.log1p(-share.where(~far, 0))
        return self.concentration * torch.where(
            far, self.rate.log() - (self.rate - lam).where(far, 1).log(), near
        )

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.concentration / (self.rate - lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        r""":math:`a\lambda/(\beta(\beta - \lambda))`."""
        self.check_point("lam", lam)
        return self.concentration / self.rate * (lam / (self.rate - lam))

    @override
    def variance(self, lam: Tensor) -> Tensor:
        return self.concentration / (self.rate - lam).square()

    @override
    def lost(self, lam: Tensor) -> Tensor:
        return self.tilted_shift(lam).abs()

    @override
    def _tilted(self, lam: Tensor) -> Gamma:
        return self._like(concentration=self.concentration, rate=self.rate - lam)

    @override
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Differentiable in both parameters."""
        concentration = self.concentration.expand(shape).contiguous()
        drawn = torch._standard_gamma(concentration, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        return drawn / self.rate

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        a, known = self.concentration, points >= 0
        at = points.where(known, 1)
        log = torch.xlogy(a, self.rate) + torch.xlogy(a - 1, at) - self.rate * at - torch.lgamma(a)
        return torch.where(known, log, -torch.inf)
