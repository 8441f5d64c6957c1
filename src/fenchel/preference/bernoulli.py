"""Coins: a gate is the mean of a tilted one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.parameters import check_entries, checked_parameter
from fenchel.preference.product import AbstractProduct

__all__ = ["Bernoulli"]


class Bernoulli(AbstractProduct):
    r"""Independent coordinates that are 1 with probability π, and else 0.

    .. math:: \kappa(\lambda) = \log(1 - \pi + \pi e^\lambda), \qquad
              \kappa'(\lambda) = \sigma(\operatorname{logit}\pi + \lambda)

    A tilted Bernoulli(½) has the mean σ(λ): first-order inference on coins is a gate.

    Args:
        probs: π, above 0 and below 1, shape (d,) for all queries, or (..., m or 1, d).
        logits: log π/(1 - π) in the place of the probabilities.

    Raises:
        ProblemError: If neither or both are given, or on shapes, dtypes and entries that do not fit.

    Reference:
        Section 7, which leaves other preferences open.

    Example:
        >>> from fenchel import InferenceProblem
        >>> x = torch.tensor([[2.0, -1.0]])
        >>> InferenceProblem(Bernoulli(torch.tensor([0.5, 0.5])), x).solve("first_order").mean     # sigmoid(x)
        tensor([[0.8808, 0.2689]])
    """

    parameters = ("logits",)

    logits: Tensor

    def __init__(self, probs: Tensor | None = None, *, logits: Tensor | None = None) -> None:
        form = "(d,) or (..., m, d)"
        if (probs is None) == (logits is None):
            given = "neither is" if probs is None else "both are"
            raise ProblemError(f"probs or logits: {given} given; expected one of them")
        if probs is None:
            self._set(logits=checked_parameter("logits", logits, form))
            return
        given_probs = checked_parameter("probs", probs, form)
        check_entries(
            "probs",
            given_probs,
            lambda x: (x > 0) & (x < 1),
            "probabilities above 0 and below 1",
            "nearly certain is logits=",
        )
        self._set(probs=given_probs)
        self.logits = torch.logit(vars(self).pop("probs"))

    @property
    def probs(self) -> Tensor:
        """π, (..., m or 1, d)."""
        return self.logits.sigmoid()

    @override
    def cumulant(self, lam: Tensor) -> Tensor:
        one, zero = self.logits.sigmoid(), (-self.logits).sigmoid()
        small = lam.abs() <= 1
        near = lam.where(small, 0)
        # Small tilts by what they add; large ones by log π(λ) - log π, in which nothing overflows.
        above = near + torch.log1p(zero * torch.expm1(-near))
        adding = torch.where(self.logits > 0, above, torch.log1p(one * torch.expm1(near)))
        falls = logsigmoid(-self.logits) - logsigmoid(-self.logits - lam)
        rises = lam + logsigmoid(self.logits) - logsigmoid(self.logits + lam)
        # Where λ outweighs the logit, rising would add it to λ and lose it.
        rising = (self.logits > 0) & (self.logits + lam > 0)
        return torch.where(small, adding, torch.where(rising, rises, falls))

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return (self.logits + lam).sigmoid()

    @override
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
        return self._like(logits=self.logits + lam)

    @override
    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Without gradient: zeros and ones do not change by a little."""
        return torch.bernoulli(self.probs.detach().expand(shape), generator=generator)

    @override
    def log_densities(self, points: Tensor) -> Tensor:
        known = (points == 0) | (points == 1)
        log = torch.where(points == 1, logsigmoid(self.logits), logsigmoid(-self.logits))
        return torch.where(known, log, -torch.inf)
