"""Rows of one problem as solvers see them: over templates that a group shares, or through φ alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness import KL, AbstractCloseness
from fenchel.conjugate import FiniteConjugate
from fenchel.problem import Problem

__all__ = ["AbstractBlock", "ConjugateBlock", "QueryBlock", "centre", "centred"]


def centred(templates: Tensor, log_preference: Tensor) -> Tensor:
    """Templates (g, n, d) less the mean of those that some query may choose: nothing changes but rounding (fact 3).

    Args:
        templates: (g, n, d).
        log_preference: Log u, (g or 1, r, n).
    """
    return templates - centre(templates, log_preference.amax(1, keepdim=True) > -torch.inf)


def centre(templates: Tensor, usable: Tensor) -> Tensor:
    """The mean of the templates (g, n, d) that are marked in ``usable`` (g or 1, 1, n), (g, 1, d)."""
    chosen = usable.to(templates.dtype)
    return chosen @ templates / chosen.sum(-1, keepdim=True).clamp(min=1)


class AbstractBlock(ABC):
    """Rows of one problem as solvers see them: g groups, r queries in each.

    Attributes:
        evidence: z, (g, r, d).
        alpha: α, (g or 1, r or 1, 1).
    """

    evidence: Tensor
    alpha: Tensor

    @property
    def offsets(self) -> Tensor | None:
        """Vectors (g, n, d) whose inner products with λ weights depend on, or None where there are no templates.

        Templates less their centre: a common vector changes neither weights nor dual point (fact 3), only
        rounding.
        """
        return None

    @abstractmethod
    def shift(self, dual: Tensor) -> Tensor:
        """h(λ) - h(0) at dual points (g, r, d); exactly zero at λ = 0."""

    def inside(self, dual: Tensor) -> Tensor | None:
        """Whether dual points (g, r, d) are in φ's domain, bool (g, r); None where that is everything."""
        del dual
        return None

    def rounding(self, dual: Tensor) -> Tensor | None:
        """How far at most ``shift`` evaluated in float64 is from exact, (g, r); None where that is not known."""
        del dual
        return None

    def mean_rounding(self) -> Tensor | None:
        """What is rounded in a mean besides its shift and some roundings of itself, (g, r); None where nothing is."""
        return None

    def unsettled(self, dual: Tensor) -> Tensor | None:
        """Where integrals do not converge, bool (g, r); None where nothing is integrated."""
        del dual
        return None

    def mean_by(self, dual: Tensor, shift: Tensor) -> Tensor:
        """h(λ) at dual points (g, r, d), given its shift."""
        del dual
        return self.rest_mean() + shift

    @abstractmethod
    def over_templates(self) -> QueryBlock | None:
        """The same rows over templates, in a leading shape that reshapes to (g, r), if there are any."""

    @abstractmethod
    def rest_mean(self) -> Tensor:
        """The mean at rest, h(0), (g, r or 1, d)."""

    @abstractmethod
    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every curvature, (g or 1, r or 1, 1), or None where there is none."""

    @abstractmethod
    def excess(self, dual: Tensor) -> Tensor:
        r""":math:`\varphi(\lambda) - \varphi(0) - \langle\lambda, \nabla\varphi(0)\rangle \ge 0`, (g, r)."""

    def dual_gain(self, dual: Tensor) -> Tensor:
        r""":math:`\mathcal{D}(\lambda) - \mathcal{D}(0)`, (g, r)."""
        linear = torch.linalg.vecdot(dual, self.evidence - dual / (2 * self.alpha))
        return linear - self.excess(dual)

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same rows in another dtype."""


@dataclass(frozen=True)
class QueryBlock(AbstractBlock):
    """Rows whose closeness gives weights row by row, over templates that a group shares.

    Attributes:
        templates: (g, n, d).
        log_preference: (g or 1, r or 1, n), normalised.
        evidence: (g, r, d).
        alpha: (g or 1, r or 1, 1).
        closeness: D, KL where nothing else is said.
    """

    templates: Tensor
    log_preference: Tensor
    evidence: Tensor
    alpha: Tensor
    closeness: AbstractCloseness = field(default_factory=KL)

    @property
    @override
    def offsets(self) -> Tensor:
        return centred(self.templates, self.log_preference)

    @override
    def shift(self, dual: Tensor) -> Tensor:
        potential = dual @ self.templates.mT
        weights = self.closeness.weights(potential, self.log_preference)
        # The mean's shift rather than two means: at λ = 0 it is then exactly zero.
        return self.closeness.displacement(potential, weights, self.log_preference) @ self.templates

    @override
    def over_templates(self) -> QueryBlock:
        return self

    @override
    def rest_mean(self) -> Tensor:
        return self.closeness.rest(self.log_preference) @ self.templates

    @override
    def smoothness(self) -> Tensor:
        modulus = self.closeness.modulus
        if isinstance(modulus, Tensor) and modulus.dim():
            modulus = modulus.unsqueeze(-1)
        return self.offsets.square().sum(-1).amax(-1).reshape(-1, 1, 1) / modulus

    @override
    def excess(self, dual: Tensor) -> Tensor:
        rest, potential = self.closeness.rest(self.log_preference), dual @ self.offsets.mT
        above = self.closeness.conjugate(potential, self.log_preference)
        at_zero = self.closeness.conjugate(torch.zeros_like(potential[..., :1, :]), self.log_preference)
        return above - at_zero - torch.linalg.vecdot(rest.expand_as(potential), potential)

    @override
    def to(self, dtype: torch.dtype) -> QueryBlock:
        return QueryBlock(
            self.templates.to(dtype),
            self.log_preference.to(dtype),
            self.evidence.to(dtype),
            self.alpha.to(dtype),
            self.closeness.to(dtype),
        )


@dataclass(frozen=True)
class ConjugateBlock(AbstractBlock):
    """Some of the queries of a problem, seen through φ alone.

    Attributes:
        problem: Of these queries, with shape (..., r).
        evidence: (g, r, d), g being all leading dimensions.
        alpha: (g, r, 1).
    """

    problem: Problem
    evidence: Tensor
    alpha: Tensor

    @classmethod
    def of(cls, problem: Problem) -> ConjugateBlock:
        """All queries of a problem."""
        d, r = problem.conjugate.dim, problem.shape[-1]
        evidence = problem.evidence.expand(*problem.shape, d).reshape(-1, r, d)
        return cls(problem, evidence, problem.alpha.expand(problem.shape).reshape(-1, r, 1))

    @override
    def shift(self, dual: Tensor) -> Tensor:
        lam = dual.reshape(*self.problem.shape, -1)
        return self.problem.conjugate.shift(lam).reshape(dual.shape)

    @override
    def inside(self, dual: Tensor) -> Tensor | None:
        found = self.problem.conjugate.inside(dual.reshape(*self.problem.shape, -1))
        return None if found is None else found.expand(self.problem.shape).reshape(dual.shape[:2])

    @override
    def rounding(self, dual: Tensor) -> Tensor | None:
        found = self.problem.conjugate.rounding(dual.reshape(*self.problem.shape, -1))
        return None if found is None else found.expand(self.problem.shape).reshape(dual.shape[:2])

    @override
    def mean_rounding(self) -> Tensor | None:
        found = self.problem.conjugate.mean_rounding()
        return None if found is None else found.expand(self.problem.shape).reshape(self.evidence.shape[:2])

    @override
    def unsettled(self, dual: Tensor) -> Tensor | None:
        found = self.problem.conjugate.unsettled(dual.reshape(*self.problem.shape, -1))
        return None if found is None else found.expand(self.problem.shape).reshape(dual.shape[:2])

    @override
    def mean_by(self, dual: Tensor, shift: Tensor) -> Tensor:
        whole = (*self.problem.shape, dual.shape[-1])
        found = self.problem.conjugate.mean_by(dual.reshape(whole), shift.reshape(whole))
        return found.expand(whole).reshape(dual.shape)

    @override
    def over_templates(self) -> QueryBlock | None:
        conjugate, problem = self.problem.conjugate, self.problem
        if not isinstance(conjugate, FiniteConjugate):
            return None
        return QueryBlock(
            conjugate.templates,
            conjugate.log_weights,
            self.evidence.reshape(*problem.shape, -1),
            problem.alpha_column,
            conjugate.closeness,
        )

    @override
    def rest_mean(self) -> Tensor:
        mean = self.problem.conjugate.rest_mean()
        return mean.expand(self.evidence.reshape(*self.problem.shape, -1).shape).reshape(self.evidence.shape)

    @override
    def smoothness(self) -> Tensor | None:
        bound = self.problem.conjugate.smoothness()
        return None if bound is None else bound.expand(self.problem.shape).reshape(self.alpha.shape)

    @override
    def excess(self, dual: Tensor) -> Tensor:
        conjugate, lam = self.problem.conjugate, dual.reshape(*self.problem.shape, -1)
        rise = conjugate.value(lam) - conjugate.value(torch.zeros_like(lam))
        return (rise - (lam * conjugate.rest_mean()).sum(-1)).reshape(dual.shape[:2])

    @override
    def to(self, dtype: torch.dtype) -> ConjugateBlock:
        return ConjugateBlock(self.problem.to(dtype), self.evidence.to(dtype), self.alpha.to(dtype))
