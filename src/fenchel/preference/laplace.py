"""Two exponential tails, of one steepness or of two."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.rounding import UNIT
from fenchel.preference.parameters import checked_parameter
from fenchel.preference.product import ROUNDINGS, AbstractProduct, pair

__all__ = ["AsymmetricLaplace", "Laplace"]


class AbstractTwoSided(AbstractProduct):
    """A density that falls exponentially to both sides of a location."""

    location: Tensor

    @abstractmethod
    def rates(self) -> tuple[Tensor, Tensor]:
        """How steeply it falls to the left and to the right."""

    @override
    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        left, right = self.rates()
        return -left, right

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        left, right = self.rates()
        # The product of both factors, 1 where λ is 0, to rounding of what it lacks of 1; far out factor by factor.
        lacking = lam / left - lam / right - (lam / left) * (lam / right)
        near = lacking.abs() < 0.5
        one, other = ((left + lam) / left).where(~near, 1), ((right - lam) / right).where(~near, 1)
        return self.location * lam - torch.where(
            near, torch.log1p(lacking.where(near, 0)), one.log() + other.log()
        )

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        left, right = self.rates()
        return self.location + (1 / (right - lam) - 1 / (left + lam))

    @override
    def mean_rounding(self) -> Tensor:
        """The means of both tails, which may cancel."""
        left, right = self.rates()
        size = (1 / left + 1 / right).expand(*self.lead, self.dim).norm(dim=-1)
        return ROUNDINGS * UNIT * size

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        """What each tail adds, with the sign of λ both."""
        self.check_point("lam", lam)
        left, right = self.rates()
        return lam / (right * (right - lam)) + lam / (left * (left + lam))

    @override
    def variance(self, lam: Tensor) -> Tensor:
        left, right = self.rates()
        return (right - lam).square().reciprocal() + (left + lam).square().reciprocal()

    @override
    def lost(self, lam: Tensor) -> Tensor:
        """Rates that are quotients are rounded, which counts where a tail is nearly flat."""
        left, right = self.rates()
        own = self.tilted_shift(lam).abs()
        return own * (1 + right / (right - lam).abs() + left / (left + lam).abs())

    @override
    def _tilted(self, lam: Tensor) -> AsymmetricLaplace:
        left, right = self.rates()
        made = object.__new__(AsymmetricLaplace)
        made.location, made.left, made.right = self.location, left + lam, right - lam
        return made

    @override
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """The difference of two exponential numbers; differentiable in every parameter."""
        left, right = self.rates()
        up, down = (self.location.new_empty(shape).exponential_(generator=generator) for _ in range(2))
        return self.location + up / right - down / left

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        left, right = self.rates()
        apart = points - self.location
        height = left.log() + right.log() - (left + right).log()
        return height - torch.where(apart >= 0, right, -left) * apart


class Laplace(AbstractTwoSided):
    r"""Independent coordinates with density :math:`e^{-\lvert x - \ell\rvert/b}/2b`.

    .. math:: \kappa(\lambda) = \ell\lambda - \log(1 - b^2\lambda^2), \qquad \lvert\lambda\rvert < 1/b

    Tilted, its tails fall with rates 1/b + λ to the left and 1/b - λ to the right: an :class:`AsymmetricLaplace`. The
    exact estimator stays where the cumulant is finite; where first or second order leave,
    :class:`~fenchel.DomainError` says for which α they do not.

    Args:
        location: ℓ, shape (d,) for all queries, or (..., m or 1, d), or a number.
        scale: b > 0, likewise; one of both is a tensor.

    Raises:
        ProblemError: On shapes, dtypes and entries that do not fit.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Laplace(torch.zeros(1, dtype=torch.float64), 1.0)
        >>> InferenceProblem(u, torch.tensor([[2.0]], dtype=torch.float64), alpha=9.0).solve("exact").distribution
        AsymmetricLaplace(queries=(1,), dim=1, dtype=torch.float64, device='cpu')
    """

    parameters = ("location", "scale")

    scale: Tensor

    def __init__(self, location: float | Tensor, scale: float | Tensor) -> None:
        location, scale = pair(("location", location), ("scale", scale), positive=("scale",))
        self._set(location=location, scale=scale)

    @override
    def rates(self) -> tuple[Tensor, Tensor]:
        rate = 1 / self.scale
        return rate, rate


class AsymmetricLaplace(AbstractTwoSided):
    r"""Independent coordinates whose density falls from a location with one rate to the left and one to the right.

    .. math:: \kappa(\lambda) = \ell\lambda - \log(1 + \lambda/L) - \log(1 - \lambda/R), \qquad -L < \lambda < R

    Args:
        location: ℓ, shape (d,) for all queries, or (..., m or 1, d).
        left: L > 0, likewise, or a number.
        right: R > 0, likewise, or a number.

    Raises:
        ProblemError: On shapes, dtypes and entries that do not fit.

    Example:
        >>> AsymmetricLaplace(torch.zeros(1), 1.0, 4.0).mean()           # 1/R - 1/L
        tensor([[-0.7500]])
    """

    parameters = ("location", "left", "right")

    left: Tensor
    right: Tensor

    def __init__(self, location: Tensor, left: float | Tensor, right: float | Tensor) -> None:
        form = "(d,) or (..., m, d)"
        location = checked_parameter("location", location, form)
        sides = {
            name: checked_parameter(
                name, value, f"{form}, or a number", like=location, of="location", above=0.0
            )
            for name, value in (("left", left), ("right", right))
        }
        self._set(location=location, **sides)

    @override
    def rates(self) -> tuple[Tensor, Tensor]:
        return self.left, self.right
