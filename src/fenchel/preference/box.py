r"""Numbers between two ends, evenly or by an exponential slope.

With :math:`x = w\lambda` for half the width w of the box, the cumulant is :math:`\log(\sinh x / x)` about its
middle, its derivative Langevin's function :math:`\coth x - 1/x`. Near 0 these are differences of large numbers, and
taken from the series :math:`\coth x - 1/x = \sum_n 2(-1)^{n+1}\zeta(2n)\,x^{2n-1}/\pi^{2n}`.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments.tensor import values_are_known
from fenchel.closeness.rounding import UNIT
from fenchel.errors import ProblemError
from fenchel.preference.parameters import checked_parameter
from fenchel.preference.product import ROUNDINGS, AbstractProduct, pair

__all__ = ["Box", "TruncatedExponential"]

SMALL = 0.5
"""Where the series takes over: its terms shrink by 40 each."""

COEFFICIENTS = [
    2 * (-1) ** (n + 1) * math.fsum(k ** (-2 * n) for k in range(1, 2000)) / math.pi ** (2 * n)
    for n in range(3, 13)
]
"""Those of x⁵, x⁷, ...; of x and x³ they are known."""

COEFFICIENTS = [1 / 3, -1 / 45, *COEFFICIENTS]


def _series(x: Tensor, coefficients: list[float]) -> Tensor:
    """A polynomial in x², from its constant on."""
    square, total = x.square(), torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * square + coefficient
    return total


def _split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where x is small, x there, and x elsewhere."""
    small = x.abs() < SMALL
    return small, x.where(small, 0), x.where(~small, 1)


def log_sinhc(x: Tensor) -> Tensor:
    r""":math:`\log(\sinh x/x)`."""
    small, near, far = _split(x)
    series = near.square() * _series(near, [c / (2 * n + 2) for n, c in enumerate(COEFFICIENTS)])
    size = far.abs()
    return torch.where(small, series, size + torch.log1p(-torch.exp(-2 * size)) - torch.log(2 * size))


def langevin(x: Tensor) -> Tensor:
    r""":math:`\coth x - 1/x`."""
    small, near, far = _split(x)
    return torch.where(small, near * _series(near, COEFFICIENTS), 1 / torch.tanh(far) - 1 / far)


def langevin_slope(x: Tensor) -> Tensor:
    r""":math:`1/x^2 - 1/\sinh^2 x`."""
    small, near, far = _split(x)
    series = _series(near, [(2 * n + 1) * c for n, c in enumerate(COEFFICIENTS)])
    # 1/sinh² = 4 e^(-2x)/(1 - e^(-2x))², which does not overflow.
    falling = torch.exp(-2 * far.abs())
    return torch.where(small, series, far.square().reciprocal() - 4 * falling / (1 - falling).square())


class AbstractBetween(AbstractProduct):
    r"""A density in proportion to :math:`e^{\theta x}` between two ends."""

    low: Tensor
    high: Tensor

    def _set_ends(self, low: float | Tensor, high: float | Tensor) -> None:
        low, high = pair(("low", low), ("high", high))
        self._set(low=low, high=high)
        if values_are_known(low):
            apart = (high - low).detach()
            if not bool((apart > 0).all()):
                where = tuple(int(i) for i in (~(apart > 0)).nonzero()[0])
                ends = (float(end.detach().expand(apart.shape)[where]) for end in (low, high))
                raise ProblemError(
                    "low and high hold {:.6g} and {:.6g} at index {}; expected low below high in every entry".format(
                        *ends, where
                    )
                )

    @property
    @abstractmethod
    def slope(self) -> Tensor:
        """θ, elementwise."""

    def half(self) -> Tensor:
        """Half the width of the box."""
        return (self.high - self.low) / 2

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        half, start = self.half(), self.slope
        rise = log_sinhc(half * (start + lam)) - log_sinhc(half * start)
        return (self.low + self.high) / 2 * lam + rise

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        half = self.half()
        return (self.low + self.high) / 2 + half * langevin(half * (self.slope + lam))

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        half, start = self.half(), self.slope
        return half * (langevin(half * (start + lam)) - langevin(half * start))

    @override
    def variance(self, lam: Tensor) -> Tensor:
        half = self.half()
        return half.square() * langevin_slope(half * (self.slope + lam))

    @override
    def lost(self, lam: Tensor) -> Tensor:
        half, start = self.half(), self.slope
        return half * (langevin(half * (start + lam)).abs() + langevin(half * start).abs())

    @override
    def mean_rounding(self) -> Tensor:
        """The middle, and how far from it the mean is, which may cancel."""
        size = (self.low.abs() + self.high.abs()).expand(*self.lead, self.dim).norm(dim=-1)
        return ROUNDINGS * UNIT * size

    @override
    def _tilted(self, lam: Tensor) -> TruncatedExponential:
        made = object.__new__(TruncatedExponential)
        made.low, made.high, made.theta = self.low, self.high, self.slope + lam
        return made

    @override
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        r"""By the inverse :math:`\log(1 + q(e^y - 1))/y`, y = 2wθ; differentiable in every parameter."""
        share = self.low.new_empty(shape).uniform_(generator=generator)
        steepness = 2 * self.half() * self.slope
        small = steepness.abs() < 1e-6
        rising = steepness.where((steepness > 0) & ~small, 1)
        falling = steepness.where((steepness < 0) & ~small, -1)
        up = 1 + torch.log1p((1 - share) * torch.expm1(-rising)) / rising
        down = torch.log1p(share * torch.expm1(falling)) / falling
        # To first order in y where the quotient would lose it.
        even = share + steepness.where(small, 0) * share * (1 - share) / 2
        inverse = torch.where(small, even, torch.where(steepness > 0, up, down))
        return self.low + (self.high - self.low) * inverse

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        half, middle = self.half(), (self.low + self.high) / 2
        inside = (points >= self.low) & (points <= self.high)
        log = self.slope * (points - middle) - log_sinhc(half * self.slope) - torch.log(2 * half)
        return torch.where(inside, log, -torch.inf)


class Box(AbstractBetween):
    r"""Independent coordinates that are uniform between two ends.

    .. math:: \kappa(\lambda) = c\lambda + \log\frac{\sinh w\lambda}{w\lambda}, \qquad
              \kappa'(\lambda) = c + w\bigl(\coth w\lambda - \tfrac1{w\lambda}\bigr)

    with middle c and half width w. Tilted, it is a :class:`TruncatedExponential`; no mean leaves the box.

    Args:
        low: Shape (d,) for all queries, or (..., m or 1, d), or a number.
        high: Likewise, above low; one of both is a tensor.

    Raises:
        ProblemError: On shapes, dtypes and entries that do not fit.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Box(torch.zeros(2), 1.0)
        >>> InferenceProblem(u, torch.tensor([[0.3, -9.0]]), alpha=10.0).solve("exact", tol=1e-4).mean
        tensor([[0.6331, 0.0117]])
    """

    parameters = ("low", "high")

    def __init__(self, low: float | Tensor, high: float | Tensor) -> None:
        self._set_ends(low, high)

    @property
    @override
    def slope(self) -> Tensor:
        return torch.zeros_like(self.low)


class TruncatedExponential(AbstractBetween):
    r"""Independent coordinates with density in proportion to :math:`e^{\theta x}` between two ends.

    Args:
        low: Shape (d,) for all queries, or (..., m or 1, d), or a number.
        high: Likewise, above low; one of both is a tensor.
        theta: θ, likewise, of either sign; 0 is a :class:`Box`.

    Raises:
        ProblemError: On shapes, dtypes and entries that do not fit.

    Example:
        >>> TruncatedExponential(torch.zeros(1), 1.0, 2.0).mean()
        tensor([[0.6565]])
    """

    parameters = ("low", "high", "theta")

    theta: Tensor

    def __init__(self, low: float | Tensor, high: float | Tensor, theta: float | Tensor) -> None:
        self._set_ends(low, high)
        form = "(d,) or (..., m, d), or a number"
        ends = {"low": self.low, "high": self.high}
        self._set(**ends, theta=checked_parameter("theta", theta, form, like=self.low, of="low"))

    @property
    @override
    def slope(self) -> Tensor:
        return self.theta
