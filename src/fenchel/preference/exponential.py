r"""Preferences with independent coordinates and exponential densities, on the line or an interval.

On an interval of half width w, with :math:`x = w\lambda`, the cumulant about the middle is :math:`\log(\sinh x / x)`,
and its derivative the Langevin function :math:`\coth x - 1/x`. Near 0 these are differences of large numbers and are
evaluated by the series :math:`\coth x - 1/x = \sum_n 2(-1)^{n+1}\zeta(2n)\,x^{2n-1}/\pi^{2n}`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, distributions
from typing_extensions import override

from fenchel.preference.independent import ROUNDINGS, AbstractProduct
from fenchel.tensors import UNIT, check_entries, polynomial, values_are_known

# Arguments below which the series is used: each term is 40 times smaller than the one before.
SMALL = 0.5

# Arguments up to which differences are computed from the series.
BOTH_SMALL = 0.75

# Coefficients of x⁵, x⁷, ...; those of x and x³ are known.
COEFFICIENTS = [
    2 * (-1) ** (n + 1) * math.fsum(k ** (-2 * n) for k in range(1, 2000)) / math.pi ** (2 * n)
    for n in range(3, 13)
]

COEFFICIENTS = [1 / 3, -1 / 45, *COEFFICIENTS]


def _split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether x is small, x where it is small, and x elsewhere."""
    small = x.abs() < SMALL
    return small, x.where(small, 0), x.where(~small, 1)


def log_sinhc(x: Tensor) -> Tensor:
    r""":math:`\log(\sinh x/x)`."""
    return torch.where(x.abs() < SMALL, 0, x.abs()) + _log_sinhc_rest(x)


def _log_sinhc_rest(x: Tensor) -> Tensor:
    r""":math:`\log(\sinh x/x)`, minus :math:`\lvert x\rvert` where x is not small."""
    small, near, far = _split(x)
    series = near.square() * polynomial(near.square(), [c / (2 * n + 2) for n, c in enumerate(COEFFICIENTS)])
    size = far.abs()
    return torch.where(small, series, torch.log1p(-torch.exp(-2 * size)) - torch.log(2 * size))


def langevin(x: Tensor) -> Tensor:
    r""":math:`\coth x - 1/x`."""
    small, near, far = _split(x)
    return torch.where(small, near * polynomial(near.square(), COEFFICIENTS), 1 / torch.tanh(far) - 1 / far)


def _divided_difference(x: Tensor, origin: Tensor, coefficients: list[float]) -> Tensor:
    """Difference of a polynomial in x² at x and at an origin, divided by the difference of x²."""
    square, other = x.square(), origin.square()
    value, quotient = torch.zeros_like(x), torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        quotient = quotient * other + value
        value = value * square + coefficient
    return quotient


def log_sinhc_difference(x: Tensor, origin: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    r"""Difference of :math:`\log(\sinh x/x)` at x and at an origin, which is a step away from x.

    Returns:
        The difference if both are small, and otherwise the difference minus that of the absolute values of x.
    """
    smaller, larger = torch.minimum(x.abs(), origin.abs()), torch.maximum(x.abs(), origin.abs())
    near, far = larger <= BOTH_SMALL, (smaller >= SMALL) & (x * origin > 0)
    coefficients = [0.0, *(c / (2 * n + 2) for n, c in enumerate(COEFFICIENTS))]
    quotient = _divided_difference(x.where(near, 0), origin.where(near, 0), coefficients)
    grown, smaller = step.where(far, 0) * torch.sign(origin), smaller.where(far, 1)
    falling = torch.exp(-2 * smaller) * torch.expm1(-2 * grown.abs())
    tails = torch.log1p(falling / torch.expm1(-2 * smaller)) * torch.sign(grown)
    rests = [_log_sinhc_rest(y) - torch.where(y.abs() < SMALL, y.abs(), 0) for y in (x, origin)]
    beyond = torch.where(far, tails - torch.log1p(grown / origin.abs().where(far, 1)), rests[0] - rests[1])
    return torch.where(near, quotient * step * (x + origin).where(near, 0), 0), beyond


def end_distance(x: Tensor) -> Tensor:
    r""":math:`1 - (\coth\lvert x\rvert - 1/\lvert x\rvert)` for x that is not small."""
    size = x.abs()
    # coth x - 1 = 2 e^(-2x)/(1 - e^(-2x)), which does not overflow.
    falling = torch.exp(-2 * size)
    return size.reciprocal() - 2 * falling / (1 - falling)


def langevin_slope(x: Tensor, half: Tensor) -> Tensor:
    r""":math:`w^2(1/x^2 - 1/\sinh^2 x)`."""
    small, near, far = _split(x)
    series = polynomial(near.square(), [(2 * n + 1) * c for n, c in enumerate(COEFFICIENTS)])
    # 1/sinh² = 4 e^(-2x)/(1 - e^(-2x))², which does not overflow; w/x is squared, as x² may overflow.
    size, square = far.abs(), half.square()
    falling = torch.exp(-2 * size)
    return torch.where(
        small, square * series, (half / size).square() - 4 * square * (falling / (1 - falling).square())
    )


class TruncatedExponential(AbstractProduct):
    r"""Independent coordinates with density proportional to :math:`e^{\theta x}` on an interval.

    Args:
        low: Shape (d,) for all queries, or (..., m or 1, d), or a number.
        high: Like low, and above it; at least one of them is a tensor.
        theta: θ, like low, of either sign; 0 gives a :class:`Box`.

    Raises:
        ProblemError: If shapes, dtypes or entries are invalid.

    Example:
        >>> TruncatedExponential(torch.zeros(1), 1.0, 2.0).mean()
        tensor([[0.6565]])
    """

    rows = ("low", "high", "theta")

    low: Tensor
    high: Tensor
    theta: Tensor

    def __init__(self, low: float | Tensor, high: float | Tensor, theta: float | Tensor) -> None:
        self._set_between(low=low, high=high, theta=theta)

    def _set_between(self, **parameters: Any) -> None:
        """Check and set parameters, among them low and high."""
        self._set(**parameters)
        check_entries(
            "high - low", self.high - self.low, lambda x: x > 0, "numbers above 0: low is below high"
        )

    def half(self) -> Tensor:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        half, start = self.half(), self.theta
        x, origin = half * (start + lam), half * start
        series, beyond = log_sinhc_difference(x, origin, half * lam)
        near = torch.maximum(x.abs(), origin.abs()) <= BOTH_SMALL
        # For large x relative to the end with the largest density, since the middle and half the width would cancel.
        end = torch.where(torch.where(x == 0, origin, x) > 0, self.high, self.low)
        far = end * lam + beyond - torch.where(x * origin < 0, 2 * origin.abs(), 0)
        return torch.where(near, (self.low + self.high) / 2 * lam + series, far)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        half = self.half()
        x = half * (self.theta + lam)
        small, near, far = _split(x)
        middle = (self.low + self.high) / 2 + half * (near * polynomial(near.square(), COEFFICIENTS))
        distance = half * end_distance(far)
        by_end = torch.where(far > 0, self.high - distance, self.low + distance)
        return torch.where(small, middle, by_end)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        half, start, tiny = self.half(), self.theta, self._tiny(lam)
        shift = half * (langevin(half * (start + lam)) - langevin(half * start))
        if values_are_known(lam) and not bool(tiny.any()):
            return shift
        # The difference of the two means would be rounding error.
        return torch.where(tiny, lam * self.variance(lam / 2), shift)

    def _tiny(self, lam: Tensor) -> Tensor:
        """Where λ is so small that the variance is constant between 0 and λ."""
        return (self.half() * lam).abs() < 1e-7

    @override
    def variance(self, lam: Tensor) -> Tensor:
        half = self.half()
        return langevin_slope(half * (self.theta + lam), half)

    @override
    def lost(self, lam: Tensor) -> Tensor:
        half, start, tiny = self.half(), self.theta, self._tiny(lam)
        lost = half * (langevin(half * (start + lam)).abs() + langevin(half * start).abs())
        if values_are_known(lam) and not bool(tiny.any()):
            return lost
        return torch.where(tiny, 8 * self.tilted_shift(lam).abs(), lost)

    def mean_rounding(self) -> Tensor:
        """The error of the middle and of the distance of the mean from it, which may cancel."""
        size = (self.low.abs() + self.high.abs()).expand(*self.lead, self.dim).norm(dim=-1)
        return ROUNDINGS * UNIT * size

    @override
    def _tilted(self, lam: Tensor) -> TruncatedExponential:
        return TruncatedExponential._of(low=self.low, high=self.high, theta=self.theta + lam)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        r"""By the inverse :math:`\log(1 + q(e^y - 1))/y`, y = 2wθ; differentiable in every parameter."""
        share = self.low.new_empty(shape).uniform_(generator=generator)
        steepness = 2 * self.half() * self.theta
        small = steepness.abs() < 1e-6
        rising = steepness.where((steepness > 0) & ~small, 1)
        falling = steepness.where((steepness < 0) & ~small, -1)
        up = 1 + torch.log1p((1 - share) * torch.expm1(-rising)) / rising
        down = torch.log1p(share * torch.expm1(falling)) / falling
        # To first order in y, where the quotient would lose all digits.
        even = share + steepness.where(small, 0) * share * (1 - share) / 2
        inverse = torch.where(small, even, torch.where(steepness > 0, up, down))
        return self.low + (self.high - self.low) * inverse

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        half, middle = self.half(), (self.low + self.high) / 2
        inside = (points >= self.low) & (points <= self.high)
        log = self.theta * (points - middle) - log_sinhc(half * self.theta) - torch.log(2 * half)
        return torch.where(inside, log, -torch.inf)


class Box(TruncatedExponential):
    r"""Independent coordinates that are uniform on an interval.

    .. math:: \kappa(\lambda) = c\lambda + \log\frac{\sinh w\lambda}{w\lambda}, \qquad
              \kappa'(\lambda) = c + w\bigl(\coth w\lambda - \tfrac1{w\lambda}\bigr)

    with middle c and half width w. The tilted distribution is a :class:`TruncatedExponential`.

    Args:
        low: Shape (d,) for all queries, or (..., m or 1, d), or a number.
        high: Like low, and above it; at least one of them is a tensor.

    Raises:
        ProblemError: If shapes, dtypes or entries are invalid.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Box(torch.zeros(2, dtype=torch.float64), 1.0)
        >>> z = torch.tensor([[0.3, -9.0]], dtype=torch.float64)
        >>> InferenceProblem(u, z, alpha=10.0).solve("exact", tol=1e-9).mean
        tensor([[0.6331, 0.0117]], dtype=torch.float64)
    """

    rows = ("low", "high")
    counterpart = distributions.Uniform

    def __init__(self, low: float | Tensor, high: float | Tensor) -> None:
        self._set_between(low=low, high=high)

    @property
    def theta(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """θ = 0, elementwise."""
        return torch.zeros_like(self.low)


class AsymmetricLaplace(AbstractProduct):
    r"""Independent coordinates with densities that decay exponentially, with one rate below a location and one above.

    .. math:: \kappa(\lambda) = \ell\lambda - \log(1 + \lambda/L) - \log(1 - \lambda/R), \qquad -L < \lambda < R

    Args:
        location: ℓ, shape (d,) for all queries, or (..., m or 1, d), or a number; at least one parameter is a tensor.
        left: L > 0, like location.
        right: R > 0, like location.

    Raises:
        ProblemError: If shapes, dtypes or entries are invalid.

    Example:
        >>> AsymmetricLaplace(torch.zeros(1), 1.0, 4.0).mean()           # 1/R - 1/L
        tensor([[-0.7500]])
    """

    rows = ("location", "left", "right")

    location: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, location: Tensor, left: float | Tensor, right: float | Tensor) -> None:
        self._set(location=location, left=left, right=right, positive=("left", "right"))

    @override
    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        return -self.left, self.right

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        left, right = self.left, self.right
        # The product of both factors minus 1, without cancellation near λ = 0; for large λ factor by factor.
        excess = lam / left - lam / right - (lam / left) * (lam / right)
        near = excess.abs() < 0.5
        one, other = ((left + lam) / left).where(~near, 1), ((right - lam) / right).where(~near, 1)
        return self.location * lam - torch.where(
            near, torch.log1p(excess.where(near, 0)), one.log() + other.log()
        )

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.location + (1 / (self.right - lam) - 1 / (self.left + lam))

    def mean_rounding(self) -> Tensor:
        """The error of the means of both sides, which may cancel."""
        size = (1 / self.left + 1 / self.right).expand(*self.lead, self.dim).norm(dim=-1)
        return ROUNDINGS * UNIT * size

    def tilted_shift(self, lam: Tensor) -> Tensor:
        """The sum of the shifts of both sides, each with the sign of λ."""
        self.check_point("lam", lam)
        left, right = self.left, self.right
        return lam / (right * (right - lam)) + lam / (left * (left + lam))

    @override
    def variance(self, lam: Tensor) -> Tensor:
        return (self.right - lam).square().reciprocal() + (self.left + lam).square().reciprocal()

    def lost(self, lam: Tensor) -> Tensor:
        """Rates are rounded quotients, which matters if a side is nearly flat."""
        left, right = self.left, self.right
        shift = self.tilted_shift(lam).abs()
        return shift * (1 + right / (right - lam).abs() + left / (left + lam).abs())

    @override
    def _tilted(self, lam: Tensor) -> AsymmetricLaplace:
        return AsymmetricLaplace._of(location=self.location, left=self.left + lam, right=self.right - lam)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """The difference of two exponential samples; differentiable in every parameter."""
        up, down = (self.location.new_empty(shape).exponential_(generator=generator) for _ in range(2))
        return self.location + up / self.right - down / self.left

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        left, right = self.left, self.right
        offset = points - self.location
        height = left.log() + right.log() - (left + right).log()
        return height - torch.where(offset >= 0, right, -left) * offset


class Laplace(AsymmetricLaplace):
    r"""Independent coordinates with density :math:`e^{-\lvert x - \ell\rvert/b}/2b`.

    .. math:: \kappa(\lambda) = \ell\lambda - \log(1 - b^2\lambda^2), \qquad \lvert\lambda\rvert < 1/b

    The tilted distribution is an :class:`AsymmetricLaplace` with rates 1/b + λ below and 1/b - λ above ℓ. The exact
    estimator stays where the cumulant is finite; if first or second order does not, :class:`~fenchel.DomainError` has
    the largest admissible α.

    Args:
        location: ℓ, shape (d,) for all queries, or (..., m or 1, d), or a number.
        scale: b > 0, like location; at least one of them is a tensor.

    Raises:
        ProblemError: If shapes, dtypes or entries are invalid.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Laplace(torch.zeros(1, dtype=torch.float64), 1.0)
        >>> InferenceProblem(u, torch.tensor([[2.0]], dtype=torch.float64), alpha=9.0).solve("exact").distribution
        AsymmetricLaplace(queries=(1,), dim=1, dtype=torch.float64, device='cpu')
    """

    rows = ("location", "scale")
    counterpart = distributions.Laplace

    scale: Tensor

    def __init__(self, location: float | Tensor, scale: float | Tensor) -> None:
        self._set(location=location, scale=scale, positive=("scale",))

    @property
    def left(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """1/b."""
        return 1 / self.scale

    right = left  # pyright: ignore[reportAssignmentType]
