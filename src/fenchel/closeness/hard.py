"""The closeness of a temperature of 0: all weight on the largest score."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.abstract import AbstractCloseness
from fenchel.closeness.threshold import LEAST_LOG_WEIGHT
from fenchel.errors import ProblemError

__all__ = ["Hard"]

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
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        weights = self.weights(potential, log_preference).detach()
        return (weights * torch.where(weights > 0, potential, 0)).sum(-1)

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
