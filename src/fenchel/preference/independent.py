"""Preferences with independent coordinates: Bernoulli, Poisson and gamma distributions, and their base class."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.nn.functional import logsigmoid
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape, check_together, checked_parameter
from fenchel.preference.discrete import checked_sample_shape
from fenchel.tensors import UNIT, check_entries

# Number of rounding errors assumed for the formula of a coordinate; the longest has ten operations.
ROUNDINGS = 16


class AbstractProduct(AbstractPreference):
    r"""A distribution of vectors with independent coordinates, :math:`\log M(\lambda) = \sum_j \kappa_j(\lambda_j)`.

    Subclasses name their parameters in ``rows``, all of which broadcast to (..., m or 1, d), and implement the
    cumulant κ of a coordinate, its two derivatives and the shift κ'(λ) - κ'(0), each elementwise.
    """

    resolves_shift = True

    # The distribution of coordinates in ``torch.distributions``, a function of all ``rows``; None if there is none.
    counterpart: ClassVar[Callable[..., distributions.Distribution] | None] = None

    def _set(self, *, positive: tuple[str, ...] = (), **parameters: Any) -> None:
        """Check and set parameters: tensors, or numbers, which get the dtype and device of a tensor.

        Args:
            positive: Names of the parameters that must be positive.
            **parameters: The parameters, in their order in messages.

        Raises:
            ProblemError: If a parameter is invalid, or parameters do not broadcast.
        """
        form = "(d,) or (..., m, d)" + ", or a number" * (len(parameters) > 1)
        checked: dict[str, Tensor] = {}
        numbers = [name for name, value in parameters.items() if type(value) in (int, float)]
        # Tensors first, since numbers get their dtype and device.
        for name in sorted(parameters, key=numbers.__contains__) if len(numbers) < len(parameters) else ():
            above = 0.0 if name in positive else None
            of, like = next(iter(checked.items()), ("", None))
            checked[name] = checked_parameter(name, parameters[name], form, like=like, of=of, above=above)
        if not any(tensor.dim() for tensor in checked.values()):
            names, several = " and ".join(parameters), len(parameters) > 1
            raise ProblemError(
                f"{names} {'are numbers, which do' if several else 'is a number, which does'} not determine the number "
                f"of coordinates; expected a tensor (d,) or (..., m, d){' for one of them' if several else ''}"
            )
        check_together(**{name: tuple(checked[name].shape) for name in parameters})
        vars(self).update(checked)

    @property
    @override
    def dim(self) -> int:
        parameters = (getattr(self, name) for name in self.rows)
        return max(part.shape[-1] for part in parameters if part is not None and part.dim())

    @abstractmethod
    def cumulant(self, lam: Tensor) -> Tensor:
        """κ(λ) of every coordinate, (..., m, d)."""

    @abstractmethod
    def variance(self, lam: Tensor) -> Tensor:
        """κ''(λ) of every coordinate, (..., m, d)."""

    def lost(self, lam: Tensor) -> Tensor:
        """Size of the numbers rounded in the shift, (..., m, d); its error is some roundings of them."""
        return self.tilted_shift(lam).abs()

    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        """The ends of the interval where κ is finite, elementwise; None for an infinite end."""
        return None, None

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.cumulant(lam).sum(-1)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        variance = self.variance(lam)
        return lambda vector: variance * vector

    @override
    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor:
        return vector / (1 + alpha * self.variance(lam))

    @override
    def rounding(self, lam: Tensor) -> Tensor:
        return ROUNDINGS * UNIT * self.lost(lam).norm(dim=-1)

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        low, high = self.interval()
        if low is None and high is None:
            return None
        upper = torch.inf if high is None else (high - lam) / direction
        lower = torch.inf if low is None else (low - lam) / direction
        reach = torch.where(direction > 0, upper, torch.where(direction < 0, lower, torch.inf))
        return reach.amin(-1)

    @override
    def tilted(self, lam: Tensor) -> AbstractPreference:
        self.check_point("lam", lam)
        self.check_inside(lam)
        return self._tilted(lam)

    @abstractmethod
    def _tilted(self, lam: Tensor) -> AbstractPreference: ...

    @abstractmethod
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Samples of a shape (..., m or 1, d)."""

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        sizes = checked_sample_shape(shape, generator, self.device)
        return self.draw((*sizes, *self.lead, self.dim), generator)

    def of_coordinates(self) -> distributions.Distribution:
        """The coordinates as a distribution of ``torch.distributions`` whose shape broadcasts.

        Raises:
            ProblemError: If torch has none.
        """
        if self.counterpart is None:
            raise self._no_counterpart()
        return self.counterpart(*(getattr(self, name) for name in self.rows), validate_args=False)

    @override
    def torch_distribution(self) -> distributions.Independent:
        each = self.of_coordinates().expand((*self.lead, self.dim))
        return distributions.Independent(each, 1, validate_args=False)

    def log_densities(self, points: Tensor) -> Tensor:
        """Log density or log probability of every coordinate, (..., m, d)."""
        each = self.of_coordinates()
        inside = each.support.check(points)  # pyright: ignore[reportOptionalMemberAccess]
        return torch.where(inside, each.log_prob(points.where(inside, 1)), -torch.inf)

    @override
    def log_density(self, points: Tensor) -> Tensor:
        self.check_point("points", points)
        return self.log_densities(points).sum(-1)


class Bernoulli(AbstractProduct):
    r"""Independent coordinates that are 1 with probability π and 0 otherwise.

    .. math:: \kappa(\lambda) = \log(1 - \pi + \pi e^\lambda), \qquad
              \kappa'(\lambda) = \sigma(\operatorname{logit}\pi + \lambda)

    A tilted Bernoulli(½) has the mean σ(λ): its first-order inference is a sigmoid gate.

    Args:
        probs: π, above 0 and below 1, shape (d,) for all queries, or (..., m or 1, d).
        logits: log π/(1 - π), instead of the probabilities.

    Raises:
        ProblemError: If neither or both are given, or shapes, dtypes or entries are invalid.

    Reference:
        Section 7, which leaves other preferences open.

    Example:
        >>> from fenchel import InferenceProblem
        >>> x = torch.tensor([[2.0, -1.0]])
        >>> InferenceProblem(Bernoulli(torch.tensor([0.5, 0.5])), x).solve("first_order").mean     # sigmoid(x)
        tensor([[0.8808, 0.2689]])
    """

    rows = ("logits", "_given")

    logits: Tensor
    _given: Tensor | None = None

    def __init__(self, probs: Tensor | None = None, *, logits: Tensor | None = None) -> None:
        if (probs is None) == (logits is None):
            given = "neither probs nor logits is" if probs is None else "both probs and logits are"
            raise ProblemError(f"{given} given; expected one of them")
        if probs is None:
            self._set(logits=logits)
            return
        self._set(probs=probs)
        checked = vars(self).pop("probs")
        expected = "probabilities above 0 and below 1"
        check_entries("probs", checked, lambda x: (x > 0) & (x < 1), expected, "give logits= near 0 and 1")
        self.logits = torch.logit(checked)
        if self.dtype != torch.float64:
            # The logits are rounded; conversion to another dtype starts from the probabilities.
            self._given = checked.detach()

    @property
    def probs(self) -> Tensor:
        """π, (..., m or 1, d)."""
        return self.logits.sigmoid()

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        one, zero = self.logits.sigmoid(), (-self.logits).sigmoid()
        small = lam.abs() <= 1
        near = lam.where(small, 0)
        # Small tilts by log1p of the increase; large ones by log π(λ) - log π, which does not overflow.
        above = near + torch.log1p(zero * torch.expm1(-near))
        adding = torch.where(self.logits > 0, above, torch.log1p(one * torch.expm1(near)))
        falls = logsigmoid(-self.logits) - logsigmoid(-self.logits - lam)
        rises = lam + logsigmoid(self.logits) - logsigmoid(self.logits + lam)
        # If |λ| exceeds the logit, adding the logit to λ would lose its digits.
        rising = (self.logits > 0) & (self.logits + lam > 0)
        return torch.where(small, adding, torch.where(rising, rises, falls))

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return (self.logits + lam).sigmoid()

    def tilted_shift(self, lam: Tensor) -> Tensor:
        r""":math:`\sigma(l + \lambda)\,\sigma(-l)\,(1 - e^{-\lambda})`, and for λ < 0 its mirror image."""
        self.check_point("lam", lam)
        tilted = self.logits + lam
        up = tilted.sigmoid() * (-self.logits).sigmoid() * -torch.expm1(-lam.clamp(min=0))
        down = (-tilted).sigmoid() * self.logits.sigmoid() * torch.expm1(lam.clamp(max=0))
        return torch.where(lam >= 0, up, down)

    @override
    def variance(self, lam: Tensor) -> Tensor:
        tilted = self.logits + lam
        return tilted.sigmoid() * (-tilted).sigmoid()

    @override
    def lost(self, lam: Tensor) -> Tensor:
        return self.tilted_shift(lam).abs() * (1 + self.logits.abs() + lam.abs())

    @override
    def _tilted(self, lam: Tensor) -> Bernoulli:
        return self._changed(logits=self.logits + lam, _given=None)

    @override
    def to(self, dtype: torch.dtype) -> Bernoulli:
        made = super().to(dtype)
        if made is self or made._given is None or (made.logits.requires_grad and torch.is_grad_enabled()):
            return made
        return made._changed(logits=torch.logit(made._given), _given=None)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Without gradient, as samples are discrete."""
        return torch.bernoulli(self.probs.detach().expand(shape), generator=generator)

    @override
    def of_coordinates(self) -> distributions.Bernoulli:
        return distributions.Bernoulli(logits=self.logits, validate_args=False)


class Poisson(AbstractProduct):
    r"""Independent counts with rates ν.

    .. math:: \kappa(\lambda) = \nu(e^\lambda - 1), \qquad p(\lambda) = \operatorname{Poisson}(\nu e^\lambda)

    The cumulant is finite everywhere but overflows for moderate λ, which are treated as outside its domain.

    Args:
        rate: ν > 0, shape (d,) for all queries, or (..., m or 1, d).

    Raises:
        ProblemError: If shapes, dtypes or entries are invalid.

    Example:
        >>> u = Poisson(torch.tensor([2.0, 0.5]))
        >>> u.tilted(torch.tensor([[0.0, 1.0]])).rate
        tensor([[2.0000, 1.3591]])
    """

    rows = ("rate",)
    counterpart = distributions.Poisson

    rate: Tensor

    def __init__(self, rate: Tensor) -> None:
        self._set(rate=rate, positive=("rate",))

    @override
    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        # Half of the exponents of the dtype, to keep the squares in the norm of the mean finite.
        return None, math.log(torch.finfo(self.dtype).max) / 2 - self.rate.log()

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        # e^λ - 1 = (e^(λ/2) - 1)(e^(λ/2) + 1): for a tiny rate, λ may be so large that its exponential overflows.
        half = torch.expm1(lam / 2)
        return self.rate * half * (half + 2)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.variance(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self.cumulant(lam)

    def variance(self, lam: Tensor) -> Tensor:
        """The rate of p(λ), which is also its mean."""
        root = (lam / 2).exp()
        return self.rate * root * root

    @override
    def _tilted(self, lam: Tensor) -> Poisson:
        return self._changed(rate=self.variance(lam))

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Without gradient, as samples are discrete."""
        return torch.poisson(self.rate.detach().expand(shape), generator=generator)


class Gamma(AbstractProduct):
    r"""Independent positive coordinates with concentration a and rate β; exponential if a = 1.

    .. math:: \kappa(\lambda) = -a\log(1 - \lambda/\beta), \quad \lambda < \beta, \qquad
              p(\lambda) = \operatorname{Gamma}(a, \beta - \lambda)

    The cumulant is finite only for λ < β. The exact estimator stays there; if first or second order does not,
    :class:`~fenchel.DomainError` has the largest admissible α.

    Args:
        concentration: a > 0, shape (d,) for all queries, or (..., m or 1, d), or a number.
        rate: β > 0, likewise; at least one of them is a tensor.

    Raises:
        ProblemError: If shapes, dtypes or entries are invalid.

    Example:
        >>> from fenchel import InferenceProblem
        >>> problem = InferenceProblem(Gamma(2.0, torch.tensor([1.0])), torch.tensor([[3.0]]), alpha=1.0)
        >>> problem.solve("exact", tol=1e-4).distribution.rate       # mean 2 / rate between 2 and 2 + 3
        tensor([[0.4495]])
        >>> problem.solve("first_order")
        Traceback (most recent call last):
        fenchel.errors.DomainError: first_order puts the dual point of 1 of 1 queries where log M of the Gamma ...
    """

    rows = ("concentration", "rate")
    counterpart = distributions.Gamma

    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: float | Tensor, rate: float | Tensor) -> None:
        self._set(concentration=concentration, rate=rate, positive=("concentration", "rate"))

    @override
    def interval(self) -> tuple[Tensor | None, Tensor | None]:
        return None, self.rate

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        # Near the end 1 - λ/β loses digits, whereas β - λ is exact.
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

    def tilted_shift(self, lam: Tensor) -> Tensor:
        r""":math:`a\lambda/(\beta(\beta - \lambda))`."""
        self.check_point("lam", lam)
        return self.concentration / self.rate * (lam / (self.rate - lam))

    @override
    def variance(self, lam: Tensor) -> Tensor:
        return self.concentration / (self.rate - lam).square()

    @override
    def _tilted(self, lam: Tensor) -> Gamma:
        return self._changed(rate=self.rate - lam)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Differentiable in both parameters."""
        concentration = self.concentration.expand(shape).contiguous()
        drawn = torch._standard_gamma(concentration, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        return drawn / self.rate
