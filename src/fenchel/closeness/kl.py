"""The Kullback–Leibler divergence, which gives softmax attention, and the limit of temperature 0."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.abstract import AbstractCloseness
from fenchel.closeness.sparse_weights import LEAST_LOG_WEIGHT
from fenchel.errors import ProblemError
from fenchel.tensors import LINEAR, near_displacement

__all__ = ["KL", "Hard"]


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

    @property
    @override
    def is_softmax(self) -> bool:
        return True

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
        return near_displacement(potential, self.rest(log_preference))

    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """Weights are exponentials; under p the root mean square of log p is at most about log N."""
        numbers = torch.finfo(mean_error.dtype)
        relative = 2.2 * mean_error + (2 * math.log(count) + 8) * numbers.eps
        lost = count * numbers.tiny
        return relative.masked_fill(~(largest_error <= LINEAR), torch.inf), lost

    def usable(self, log_preference: Tensor) -> Tensor:
        """Those with a preference."""
        return log_preference.amax(-2, keepdim=True) > -torch.inf

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        """P itself."""
        del log_preference
        return weights

    def __repr__(self) -> str:
        return "KL()"


TIED = 32
"""Roundings of the largest score by which scores are the same."""


class Hard(AbstractCloseness):
    r"""No closeness but to the support of the preference: the limit of temperature 0.

    .. math:: D(p, u) = \begin{cases}0 & p_i = 0 \text{ wherever } u_i = 0\\ \infty & \text{else}\end{cases}, \qquad
              D^*(f) = \max_{u_i > 0} f_i

    All weight goes to the largest score; those that share it get weight in proportion to u, as in the limit
    :math:`\theta \to 0` of :math:`\theta K(p, u)` and of every :class:`~fenchel.Tsallis` closeness in Csiszár's sense,
    and equally where u is uniform. Scores that rounding could have told apart share the largest too. Weights jump, so
    that there is no curvature, and an exact answer need not be the weights of any dual point: first order only. Its
    bounds on the gap, the mean and the dual point hold; total variation has no bound below 1.

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64), torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64).log())
        >>> z = torch.tensor([[1.0, 1.0, 0.5]], dtype=torch.float64)
        >>> InferenceProblem(u, z, closeness=Hard()).solve("first_order").weights
        tensor([[0.2500, 0.7500, 0.0000]], dtype=torch.float64)
    """

    curved = False

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        outside = ((log_preference < LEAST_LOG_WEIGHT) & (weights != 0)).any(-1)
        return torch.zeros_like(weights).sum(-1).masked_fill(outside, torch.inf)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        scores = potential.detach().masked_fill(log_preference < LEAST_LOG_WEIGHT, -torch.inf)
        most = scores.amax(-1, keepdim=True)
        size = scores.masked_fill(scores == -torch.inf, 0).abs().amax(-1, keepdim=True)
        largest = scores >= most - TIED * torch.finfo(scores.dtype).eps * size
        return torch.where(largest, log_preference, -torch.inf).softmax(-1)

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        raise ProblemError(
            "Hard() has weights that jump, and so no curvature; expected the estimator 'first_order', or a closeness "
            "with a small temperature, such as fenchel.Tsallis(2, temperature=0.01)"
        )

    @override
    def usable(self, log_preference: Tensor) -> Tensor:
        return log_preference.amax(-2, keepdim=True) >= LEAST_LOG_WEIGHT

    @override
    def rounding(self, mean_error: Tensor, largest_error: Tensor, count: int) -> tuple[Tensor, float]:
        """Weights are what they are; which score is the largest is in :meth:`pairing_error`."""
        del largest_error, count
        return torch.zeros_like(mean_error), 0.0

    @override
    def pairing_error(self, largest_error: Tensor) -> Tensor:
        """The largest of scores that are off may be lower than the largest by twice that, and what is tied by more."""
        return TIED * largest_error

    @property
    @override
    def modulus(self) -> float:
        """0: it is not strongly convex."""
        return 0.0

    def __repr__(self) -> str:
        return "Hard()"
