"""The Kullback–Leibler divergence: the closeness that gives softmax attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fenchel.closeness.abstract import AbstractCloseness
from fenchel.closeness.rounding import LINEAR, UNIT, near_displacement

__all__ = ["KL"]


class KL(AbstractCloseness):
    r"""Kullback–Leibler divergence from the preference to the weights.

    .. math:: K(p, u) = \sum_i p_i \log\frac{p_i}{u_i}, \qquad
              K^*(f) = \log \sum_i u_i e^{f_i}, \qquad \nabla K^*(f)_i \propto u_i e^{f_i}.

    Reference:
        Section 4, eq. (3); Theorem 1, eqs. (8) and (9).

    Example:
        >>> p = torch.tensor([[0.5, 0.5, 0.0]]); log_u = torch.tensor([[0.25, 0.25, 0.5]]).log()
        >>> KL().value(p, log_u)                     # log 2
        tensor([0.6931])
    """

    rowwise = True
    is_softmax = True

    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """Divergence, shape (..., m); ``inf`` where p leaves the support of u."""
        # xlogy takes 0 log 0 = 0; 0 · (-inf) must be 0 as well, and p · (-inf) is -inf, so that D is +inf.
        masked_out = torch.where(weights > 0, log_preference, torch.zeros_like(log_preference))
        return (torch.xlogy(weights, weights) - weights * masked_out).sum(-1)

    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The cumulant :math:`\log\sum_i u_i e^{f_i}`, shape (..., m)."""
        return torch.logsumexp(log_preference + potential, -1)

    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""The tilted preference :math:`p_i \propto u_i e^{f_i}`, shape (..., m, n)."""
        return torch.softmax(log_preference + potential, -1)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`u_i\,(e_i - \langle u, e\rangle)/(1 + \langle u, e\rangle)` with e = exp(f) - 1."""
        return near_displacement(
            potential.masked_fill(torch.isneginf(log_preference), 0), self.rest(log_preference)
        )

    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """Weights are exponentials; under p the root mean square of log p is at most about log N."""
        relative = 2.2 * mean_error + (4 * math.log(count) + 16) * UNIT
        lost = count * torch.finfo(torch.float64).tiny
        return relative.masked_fill(~(largest_error <= LINEAR), torch.inf), lost

    def usable(self, log_preference: Tensor) -> Tensor:
        """Those with a preference."""
        return log_preference.amax(-2, keepdim=True) > -torch.inf

    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`v \mapsto (\operatorname{diag} p - pp^\top) v` at the tilted preference p."""
        p = self.weights(potential, log_preference)
        return lambda vector: p * (vector - (p * vector).sum(-1, keepdim=True))

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """P itself."""
        del log_preference
        return weights

    def __repr__(self) -> str:
        return "KL()"
