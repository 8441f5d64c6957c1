r"""The equation that an answer solves: what its solver declares so that gradients can pass through it.

A dual point λ that makes a residual r(λ, data) vanish has, by the implicit function theorem, the derivative
:math:`d\lambda = H^{-1}\,\partial r` with :math:`H = -\partial r/\partial\lambda` (fact 8), however it was found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.problem import Problem

__all__ = ["AbstractEquation", "Expansion", "Proportion", "StationaryPoint"]


class AbstractEquation(ABC):
    r"""A residual that vanishes at the answer, with :math:`H = I/\alpha + \nabla^2\varphi` somewhere."""

    @abstractmethod
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        """R at a fixed λ (..., m, d), as a function of everything that the problem is made of, (..., m, d)."""

    @abstractmethod
    def curved_at(self, lam: Tensor) -> Tensor:
        """Where the curvature in H is taken, (..., m, d)."""

    def answer(self, problem: Problem) -> Tensor | None:
        """The answer itself, where it can be written down, (..., m, d)."""
        del problem
        return None


class StationaryPoint(AbstractEquation):
    r""":math:`\nabla\mathcal{D}(\lambda) = 0`: the maximiser of the dual."""

    @override
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        return problem.dual_gradient(lam)

    @override
    def curved_at(self, lam: Tensor) -> Tensor:
        return lam


class Expansion(AbstractEquation):
    r""":math:`z - \lambda/\alpha - \nabla^2\varphi(0)\lambda = 0`: the maximiser of its second-order expansion."""

    @override
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        curved = problem.conjugate.curvature(torch.zeros_like(lam))(lam)
        return problem.evidence - lam / problem.alpha_column - curved

    @override
    def curved_at(self, lam: Tensor) -> Tensor:
        return torch.zeros_like(lam)


class Proportion(AbstractEquation):
    r""":math:`z - \lambda/\alpha = 0`: its answer is αz, which autograd differentiates any number of times."""

    @override
    def residual(self, problem: Problem, lam: Tensor) -> Tensor:
        return problem.evidence - lam / problem.alpha_column

    @override
    def curved_at(self, lam: Tensor) -> Tensor:
        return torch.zeros_like(lam)

    @override
    def answer(self, problem: Problem) -> Tensor:
        return problem.alpha_column * problem.evidence
