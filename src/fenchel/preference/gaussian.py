"""A Gaussian preference, under which second order is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.preference.abstract import AbstractPreference, Shape
from fenchel.preference.covariance import AbstractCovariance
from fenchel.preference.covariance_arguments import checked_covariance
from fenchel.preference.parameters import (
    check_dtype,
    check_form,
    check_together,
    checked_parameter,
    checked_sample_shape,
    sums,
)

__all__ = ["Gaussian"]


class Gaussian(AbstractPreference):
    r"""The normal distribution :math:`\mathcal{N}(\mu, \Sigma)`.

    .. math:: \log M(\lambda) = \langle\mu, \lambda\rangle + \tfrac12\langle\lambda, \Sigma\lambda\rangle, \qquad
              p(\lambda) = \mathcal{N}(\mu + \Sigma\lambda, \Sigma)

    The cumulant is quadratic, so that second order is exact. Nothing of size d × d is made unless it is given.

    Args:
        mean: μ, shape (d,) for all queries, or (..., m or 1, d). Half types are converted to float32.
        covariance: Σ, (d, d) or (..., m or 1, d, d): symmetric, eigenvalues of 0 allowed. In its place:
        variance: Of uncorrelated coordinates, (d,) or (..., m or 1, d); one variance in all directions, a number or
            (..., m or 1, 1); 0 where nothing is random.
        factor: F of low rank, (d, k) or (..., m or 1, d, k), which adds :math:`FF^\top` to the variances, or is all.

    Raises:
        ProblemError: On shapes, dtypes or devices that do not fit, NaN or infinity, a covariance that is not
            symmetric or has negative eigenvalues, negative variances, or no covariance.

    Reference:
        Section 5; Section 6, eqs. (12) and (13).

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Gaussian(torch.tensor([1.0, 0.0], dtype=torch.float64), variance=1.0)
        >>> b = torch.tensor([[3.0, 3.0]], dtype=torch.float64)                     # an observation of the mean
        >>> problem = InferenceProblem(u, b - u.mean(), alpha=2.0)
        >>> problem.solve("second_order").mean                # section 5: (mu + alpha b) / (1 + alpha)
        tensor([[2.3333, 2.0000]], dtype=torch.float64)
    """

    resolves_shift = True

    def __init__(
        self,
        mean: Tensor,
        covariance: Tensor | None = None,
        *,
        variance: float | Tensor | None = None,
        factor: Tensor | None = None,
    ) -> None:
        mean = checked_parameter("mean", mean, "(d,) or (..., m, d)")
        check_form("mean", mean, "(d,) or (..., m, d)", 1)
        found = checked_covariance(
            mean,
            "mean",
            full=("covariance", covariance),
            variance=("variance", variance),
            factor=("factor", factor),
            rows="..., ",
        )
        check_together(mean=mean.shape[:-1], covariance=tuple(found.lead))
        self._mean, self._covariance = mean, found

    @classmethod
    def _of(cls, mean: Tensor, covariance: AbstractCovariance) -> Self:
        made = object.__new__(cls)
        made._mean, made._covariance = mean, covariance
        return made

    @property
    @override
    def dim(self) -> int:
        return self._mean.shape[-1]

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self._mean.dtype

    @property
    @override
    def device(self) -> torch.device:
        return self._mean.device

    @property
    @override
    def lead(self) -> torch.Size:
        return torch.broadcast_shapes((1,), self._mean.shape[:-1], self._covariance.lead)

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return (lam * (self._mean + self._covariance.product(lam) / 2)).sum(-1)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return self._mean + self.tilted_shift(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self._covariance.product(lam)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        del lam
        return self._covariance.product

    @override
    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor:
        """Once more for what the first leaves, which is its rounding times the covariance."""
        del lam
        found = self._covariance.resolvent(alpha, vector)
        left = vector - found - alpha * self._covariance.product(found)
        return found + self._covariance.resolvent(alpha, left)

    @override
    def rounding(self, lam: Tensor) -> Tensor:
        """Sums of products: ‖|Σ||λ|‖ is at most tr Σ ‖λ‖, in each of the three structures."""
        return sums(self.dim) * self._covariance.trace() * lam.norm(dim=-1)

    @override
    def smoothness(self) -> Tensor:
        return self._covariance.trace().expand(torch.broadcast_shapes((1,), self._covariance.lead))

    def covariance(self) -> Tensor:
        """The covariance Σ, written out, (..., m or 1, d, d)."""
        return self._covariance.matrix()

    @override
    def tilted(self, lam: Tensor) -> Gaussian:
        return Gaussian._of(self.tilted_mean(lam), self._covariance)

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Samples μ + Σ^½ε, shape (\*shape, ..., m or 1, d), differentiable in both parameters.

        Args:
            shape: How many; () is one of each distribution.
            generator: Where randomness comes from; torch's own where None.

        Raises:
            ProblemError: If the shape is none.
        """
        sizes = checked_sample_shape(shape, generator, self.device)
        return self._mean + self._covariance.noise((*sizes, *self.lead, self.dim), generator)

    @override
    def log_density(self, points: Tensor) -> Tensor:
        """The log density at points (..., m, d), (..., m).

        Raises:
            ProblemError: If the covariance is singular, so that there is no density.
        """
        self.check_point("points", points)
        self._covariance.check_definite()
        square = self._covariance.whitened_square(points - self._mean)
        return -(square + self._covariance.log_determinant() + self.dim * math.log(2 * math.pi)) / 2

    def log_density_of_all(self, points: Tensor) -> Tensor:
        """The log density of every query at each of the points (n, d), (..., m or 1, n)."""
        each = Gaussian._of(self._mean.unsqueeze(-2), self._covariance.unsqueezed(-1))
        found = each.log_density(points)
        return found if found.dim() > 1 else found.unsqueeze(0)

    @override
    def to(self, dtype: torch.dtype) -> Gaussian:
        if dtype == self.dtype:
            return self
        check_dtype(dtype)
        return Gaussian._of(self._mean.to(dtype), self._covariance.to(dtype))

    @override
    def queries(self, part: slice) -> Gaussian:
        if self.lead[-1] == 1:
            return self
        own = self._mean.dim() > 1 and self._mean.shape[-2] > 1
        return Gaussian._of(self._mean[..., part, :] if own else self._mean, self._covariance.part(-1, part))

    def __repr__(self) -> str:
        kind = type(self._covariance).__name__.lower()
        return (
            f"Gaussian(queries={tuple(self.lead)}, dim={self.dim}, covariance={kind}, dtype={self.dtype}, "
            f"device='{self.device}')"
        )
