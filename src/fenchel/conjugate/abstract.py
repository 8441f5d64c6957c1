"""φ, the one convex function through which solvers, bounds and gradients see a preference and a closeness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from fenchel.closeness import AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.preference import AbstractPreference

__all__ = ["AbstractConjugate"]


class AbstractConjugate(ABC):
    r"""What a preference u and a closeness D make together: a convex function of the dual point.

    .. math:: \varphi(\lambda) = D^*(T\lambda), \qquad h(\lambda) = \nabla\varphi(\lambda), \qquad
              \mathcal{D}(\lambda) = \langle\lambda, \nabla\varphi(0) + z\rangle
              - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - \varphi(\lambda)

    Args:
        preference: u.
        closeness: D.
    """

    def __init__(self, preference: AbstractPreference, closeness: AbstractCloseness) -> None:
        self.preference = preference
        self.closeness = closeness

    @property
    def dim(self) -> int:
        """Dimension of a dual point, d."""
        return self.preference.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which everything is computed."""
        return self.preference.dtype

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.preference.device

    @property
    @abstractmethod
    def leads(self) -> dict[str, tuple[int, ...]]:
        """The leading shapes (..., m or 1) of what it is made of, by name."""

    @property
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1) of one number a query."""
        return torch.broadcast_shapes(*self.leads.values())

    @abstractmethod
    def value(self, lam: Tensor) -> Tensor:
        """φ(λ), shape (..., m) for ``lam`` (..., m, d)."""

    @abstractmethod
    def mean(self, lam: Tensor) -> Tensor:
        r""":math:`h(\lambda) = \nabla\varphi(\lambda)`, shape (..., m, d)."""

    @abstractmethod
    def curvature(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`\nabla^2\varphi(\lambda)` as a function that multiplies vectors (..., m, d)."""

    def rest_mean(self) -> Tensor:
        r"""The mean at rest, :math:`\nabla\varphi(0)`, which evidence shifts: μ under KL, μ̃ (38) under transport."""
        return self.mean(self._rest())

    def _rest(self) -> Tensor:
        return torch.zeros((*self.lead, self.dim), dtype=self.dtype, device=self.device)

    def shift(self, lam: Tensor) -> Tensor:
        r""":math:`h(\lambda) - h(0)`, shape (..., m, d); exactly zero at λ = 0."""
        return self.mean(lam) - self.rest_mean()

    def mean_by(self, lam: Tensor, shift: Tensor) -> Tensor:
        """H(λ) given the shift of the mean, (..., m, d)."""
        del lam
        return self.rest_mean() + shift

    def infer(self, lam: Tensor) -> tuple[Tensor | None, Tensor]:
        """The weights (..., m, N), or None where p is no list of weights, and the shift."""
        return None, self.shift(lam)

    @property
    def modulus(self) -> float | Tensor:
        """σ, by which D is strongly convex in the 1-norm of distributions, broadcasting to (..., m)."""
        return self.closeness.modulus

    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every curvature, broadcasting to (..., m), or None where there is none."""
        return None

    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        """The largest t for which λ + t·direction is in φ's domain, (..., m); None where that is everything."""
        del lam, direction
        return None

    def inside(self, lam: Tensor) -> Tensor | None:
        """Whether λ is in φ's domain, bool (..., m); None where that is everything."""
        del lam
        return None

    @property
    def resolves_shift(self) -> bool:
        """Whether ``shift`` is right to rounding relative to itself, and ``rounding`` says how far."""
        return False

    def rounding(self, lam: Tensor) -> Tensor | None:
        """How far at most ``shift`` evaluated in float64 is from exact, (..., m); None where that is not known."""
        del lam
        return None

    def mean_rounding(self) -> Tensor | None:
        """What is rounded in a mean besides its shift and some roundings of itself, (..., m); None where nothing is."""
        return None

    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor | None:
        r""":math:`(I + \alpha\nabla^2\varphi(\lambda))^{-1}v` in closed form, (..., m, d), or None."""
        del lam, alpha, vector
        return None

    def unsettled(self, lam: Tensor) -> Tensor | None:
        """Where integrals that φ is made of do not converge, bool (..., m); None where nothing is integrated."""
        del lam
        return None

    @property
    def width(self) -> int:
        """Numbers that evaluating the mean of one query holds at once."""
        return self.dim

    @abstractmethod
    def distribution(self, lam: Tensor) -> AbstractPreference:
        """P(λ) as a distribution, of each query its own."""

    def primal_value(self, lam: Tensor) -> Tensor:
        r""":math:`D(p(\lambda), u) = \langle\lambda, h(\lambda)\rangle - \varphi(\lambda)`, shape (..., m)."""
        return (lam * self.mean(lam)).sum(-1) - self.value(lam)

    def to(self, dtype: torch.dtype) -> Self:
        """The same function in another floating-point dtype."""
        if dtype == self.dtype:
            return self
        return type(self)(self.preference.to(dtype), self.closeness.to(dtype))

    def queries(self, part: slice) -> Self:
        """The same function for some of the m queries."""
        return type(self)(self.preference.queries(part), self.closeness.queries(part))

    def refuse_weights(self) -> ProblemError:
        """The error of whoever asks for weights where p is no list of weights."""
        return ProblemError(
            f"{type(self.preference).__name__} has no list of templates, so that p is no list of weights; expected a "
            "fenchel.Discrete preference. The mean, the dual point and their bounds are there, estimate.distribution, "
            "and problem.primal_at(lam) in the place of problem.primal(weights)"
        )
