r"""How weights respond to a potential, row by row: what a fast path through Newton's method needs of a closeness.

For rows (g, r, ...) of a block: the weights :math:`p = \nabla D^*(f)` and the curvature :math:`\nabla^2 D^*(f)`. What a
solver carries from step to step is the argument, an affine function of the potential, so that what every evaluation
would add again is added once: for Kullback and Leibler's closeness it is :math:`\log u + f`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.rounding import SMALL

__all__ = ["AbstractResponse", "SoftmaxResponse", "covariance", "near_displacement", "softmax_curvature"]


class AbstractResponse(ABC):
    """The gradient of a conjugate and its derivative, for rows of queries.

    A response that is a dataclass of tensors (g or 1, r or 1, ...) can be restricted to some of its rows
    (:func:`fenchel.selection.select`) and says so by ``selectable``.
    """

    selectable: bool = True

    bordered: bool = False
    """Whether the domain may end somewhere, so that ``reach`` has to be asked."""

    smooth: ClassVar[bool] = True
    """Whether weights are differentiable; where they are so piece by piece, Newton's method minds the kinks between."""

    @property
    @abstractmethod
    def rest(self) -> Tensor:
        r""":math:`\nabla D^*(0)`, (g or 1, r or 1, n)."""

    @abstractmethod
    def argument(self, factor: Tensor, potential: Tensor) -> Tensor:
        """What is carried along, at ``factor`` (g or 1, r or 1, 1) times a potential (g, r, n)."""

    @abstractmethod
    def at(self, argument: Tensor) -> Tensor:
        r""":math:`\nabla D^*`, (g, r, n)."""

    @abstractmethod
    def curvature(self, argument: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`\nabla^2 D^*` as a function of vectors (g, r, n), given the argument and the weights there."""

    def displacement(self, potential: Tensor, weights: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` given the weights at f, in a new array, (g, r, n)."""
        del potential
        return weights - self.rest

    def resolvent(self, argument: Tensor, alpha: Tensor, right: Tensor) -> Tensor | None:
        r""":math:`(I + \alpha\nabla^2 D^*)^{-1}b` in closed form for vectors b (g, r, n), or None where there is none.

        Where the response takes λ itself for its potential.
        """
        del argument, alpha, right
        return None

    def curvature_matrix(self, argument: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
        r""":math:`F^\top \nabla^2 D^* F` for factors F (g, n, k), (g, r, k, k)."""
        product = self.curvature(argument, weights)
        columns = [product(column.unsqueeze(1).expand_as(argument)) for column in factors.unbind(-1)]
        return factors.mT.unsqueeze(1) @ torch.stack(columns, -1)

    def curvature_root(self, argument: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
        r"""A root of :math:`F^\top \nabla^2 D^* F`, (g, r, any, k), for where that is ill conditioned."""
        values, vectors = torch.linalg.eigh(self.curvature_matrix(argument, weights, factors))
        return values.clamp(min=0).sqrt().unsqueeze(-1) * vectors.mT

    def log_curvature_range(self, step: Tensor) -> Tensor | None:
        """The logarithm of the factor by which curvatures along a step (g, r, n) differ at most, (g, r).

        It has to grow in proportion with the step. None where there is no bound.
        """
        del step
        return None

    def reach(self, argument: Tensor, step: Tensor) -> Tensor | None:
        """How many times a step (g, r, n) of the argument stays in the domain, (g, r); None where any number does."""
        del argument, step
        return None


def softmax_curvature(weights: Tensor) -> Callable[[Tensor], Tensor]:
    r""":math:`v \mapsto (\operatorname{diag} p - pp^\top)v` for rows p and v, (g, r, n)."""
    return lambda vector: (vector - torch.linalg.vecdot(weights, vector).unsqueeze(-1)).mul_(weights)


def near_displacement(potential: Tensor, preference: Tensor) -> Tensor:
    r"""What a small potential (..., m, n) adds to u, to rounding relative to itself.

    .. math:: p_i - u_i = u_i\,\frac{e_i - \langle u, e\rangle}{1 + \langle u, e\rangle}, \qquad e = e^f - 1
    """
    e = torch.expm1(potential)
    mass = (preference * e).sum(-1, keepdim=True)
    return preference * (e - mass) / (1 + mass)


def covariance(factors: Tensor, weights: Tensor) -> Tensor:
    r""":math:`F^\top (\operatorname{diag} p - pp^\top) F` for F (g, n, k) and p (g, r, n); (g, r, k, k)."""
    offsets = factors.unsqueeze(1) - (weights @ factors).unsqueeze(2)
    return offsets.mT @ (weights.unsqueeze(-1) * offsets)


@dataclass(frozen=True)
class SoftmaxResponse(AbstractResponse):
    r"""That of Kullback and Leibler's closeness: :math:`p \propto u_i e^{f_i}`.

    Attributes:
        log_preference: log u, normalised, (g or 1, r or 1, n).
        preference: u.
    """

    log_preference: Tensor
    preference: Tensor

    @classmethod
    def to_preference(cls, log_preference: Tensor) -> SoftmaxResponse:
        """The response around log u (g or 1, r or 1, n)."""
        return cls(log_preference, log_preference.softmax(-1))

    @property
    @override
    def rest(self) -> Tensor:
        return self.preference

    @override
    def argument(self, factor: Tensor, potential: Tensor) -> Tensor:
        return torch.addcmul(self.log_preference, factor, potential)

    @override
    def at(self, argument: Tensor) -> Tensor:
        return torch.softmax(argument, -1)

    @override
    def curvature(self, argument: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        return softmax_curvature(weights)

    @override
    def curvature_matrix(self, argument: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
        return covariance(factors, weights)

    @override
    def curvature_root(self, argument: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
        offsets = factors.unsqueeze(1) - (weights @ factors).unsqueeze(2)
        return weights.sqrt().unsqueeze(-1) * offsets

    @override
    def displacement(self, potential: Tensor, weights: Tensor) -> Tensor:
        apart = weights - self.preference
        allowed = ~torch.isneginf(self.log_preference)
        small = potential.masked_fill(~allowed, 0).abs().amax(-1, keepdim=True) <= SMALL
        if not bool(small.any()):
            return apart
        return torch.where(small, near_displacement(potential * (small & allowed), self.preference), apart)

    @override
    def log_curvature_range(self, step: Tensor) -> Tensor:
        r"""Range of the step over the support: log-sum-exp is self-concordant in this sense."""
        masked = torch.isneginf(self.log_preference)
        if not bool(masked.any()):
            return step.amax(-1) - step.amin(-1)
        highest = step.masked_fill(masked, -torch.inf).amax(-1)
        return highest - step.masked_fill(masked, torch.inf).amin(-1)
