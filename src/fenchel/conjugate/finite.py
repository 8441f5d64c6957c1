"""φ where the preference is a list of templates: weights beside the mean, under any closeness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness import AbstractCloseness
from fenchel.conjugate.abstract import AbstractConjugate
from fenchel.preference import Discrete

__all__ = ["FiniteConjugate"]


class FiniteConjugate(AbstractConjugate):
    r"""φ of a :class:`~fenchel.Discrete` preference: :math:`D^*` at the potential :math:`f = T\lambda`.

    Args:
        preference: u, with templates (..., n, d).
        closeness: D, bound to the templates by its method ``bind``.

    Attributes:
        templates: Those that p may use, (..., N, d): the preference's, then the atoms of the closeness.
    """

    preference: Discrete

    def __init__(self, preference: Discrete, closeness: AbstractCloseness) -> None:
        super().__init__(preference, closeness)
        # Joined here and not when first asked for, which may be where no gradients are recorded.
        self.templates = closeness.support(preference)

    @override
    def to(self, dtype: torch.dtype) -> Self:
        if dtype == self.dtype:
            return self
        # Bound anew: what a closeness computes from the templates is computed from those of the new dtype.
        preference = self.preference.to(dtype)
        return type(self)(preference, self.closeness.to(dtype).bind(preference))

    @property
    @override
    def leads(self) -> dict[str, tuple[int, ...]]:
        templates = (*self.templates.shape[:-2], 1)
        log_weights = tuple(self.log_weights.shape[:-1])
        return {"templates": templates, "log_weights": log_weights, **self.closeness.query_shapes()}

    @property
    def log_weights(self) -> Tensor:
        """Log u, (..., m or 1, n)."""
        return self.preference.log_weights

    def potential(self, lam: Tensor) -> Tensor:
        r"""The inner products :math:`T\lambda`, shape (..., m, N)."""
        self.preference.check_point("lam", lam)
        return lam @ self.templates.mT

    def weights(self, lam: Tensor) -> Tensor:
        r"""Recovery (9): :math:`p(\lambda) = \nabla D^*(T\lambda)`, shape (..., m, N)."""
        return self.closeness.weights(self.potential(lam), self.log_weights)

    def rest_weights(self) -> Tensor:
        """The weights nearest the preference, (..., m or 1, N): u under KL, ũ (37) under transport."""
        return self.closeness.rest(self.log_weights)

    @override
    def value(self, lam: Tensor) -> Tensor:
        return self.closeness.conjugate(self.potential(lam), self.log_weights)

    @override
    def mean(self, lam: Tensor) -> Tensor:
        return self.weights(lam) @ self.templates

    @override
    def rest_mean(self) -> Tensor:
        return self.rest_weights() @ self.templates

    @override
    def shift(self, lam: Tensor) -> Tensor:
        return self.infer(lam)[1]

    @override
    def infer(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        potential = self.potential(lam)
        weights = self.closeness.weights(potential, self.log_weights)
        # One product with p - u rather than two with p and u: at λ = 0 the difference is then exactly zero.
        return weights, self.closeness.displacement(potential, weights, self.log_weights) @ self.templates

    @override
    def curvature(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        of_closeness = self.closeness.curvature(self.potential(lam), self.log_weights)
        return lambda vector: of_closeness(self.potential(vector)) @ self.templates

    @property
    @override
    def width(self) -> int:
        return max(self.dim, self.templates.shape[-2])

    @override
    def distribution(self, lam: Tensor) -> Discrete:
        weights = self.weights(lam)
        positive = weights > 0
        log_weights = weights.where(positive, 1).log().masked_fill(~positive, -torch.inf)
        return Discrete(self.templates, log_weights)

    @override
    def smoothness(self) -> Tensor:
        r""":math:`\max_i\lVert t_i - \bar t\rVert^2/\sigma`: D* is 1/σ-smooth in the maximum norm."""
        offsets = self.templates - self.templates.mean(-2, keepdim=True)
        return offsets.square().sum(-1).amax(-1, keepdim=True) / self.modulus
