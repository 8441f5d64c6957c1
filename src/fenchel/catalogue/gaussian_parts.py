"""Inferences under a Gaussian preference on keys and values: what has a mean of values, and no weights on keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.catalogue.abstract_parts import AbstractParts
from fenchel.estimate import Estimate
from fenchel.functional.inference import AttentionCertificate
from fenchel.inference import InferenceProblem
from fenchel.preference import Gaussian

__all__ = ["GaussianParts"]


@dataclass(frozen=True, kw_only=True)
class GaussianParts(AbstractParts):
    r"""Inferences whose preference is a normal distribution on pairs (k, v) of mean 0, one a query.

    .. math:: u = \mathcal{N}\Bigl(0, \sum_j c_j \binom{k_j}{v_j}\binom{k_j}{v_j}^{\!\top}\Bigr), \qquad
              o = \mathbb{E}_p[v] = \sum_j c_j v_j\langle k_j, \lambda\rangle

    Its second moments are those of the keys and values seen. The template of a pair is its key; the mean of values is
    linear in λ, which is αz at first order and :math:`(I/\alpha + \sum_j c_j k_j k_j^\top)^{-1}z` at second, which is
    exact.

    Attributes:
        templates: Keys, (B, H, n, d).
        evidence: (B, H, m, d).
        values: (B, H, n, d_v).
        counts: c ≥ 0: how much each pair counts, broadcasting to (B, H, m, n); None is 1.
        alpha: α > 0.

    Example:
        >>> k = torch.eye(2).view(1, 1, 2, 2)
        >>> parts = GaussianParts(templates=k, evidence=torch.ones(1, 1, 1, 2), values=torch.tensor([[[[3.0], [5.0]]]]))
        >>> parts.answer(), parts.answer("exact")
        (tensor([[[[8.]]]]), tensor([[[[4.]]]]))
    """

    templates: Tensor
    evidence: Tensor
    values: Tensor
    counts: Tensor | None = None
    alpha: float | Tensor = 1.0

    def answer(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        along = self.dual(estimator) @ self.templates.mT
        return (along if self.counts is None else along * self.counts) @ self.values

    def dual(self, estimator: str = "first_order") -> Tensor:
        """λ, (B, H, m, d)."""
        if estimator == "first_order":
            alpha = (
                self.alpha.unsqueeze(-1)
                if isinstance(self.alpha, Tensor) and self.alpha.dim()
                else self.alpha
            )
            return alpha * self.evidence
        return self._solved(estimator).dual

    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """What an estimate certifies about itself, each (B, H, m)."""
        with torch.no_grad():
            found = self._solved(estimator)
        return AttentionCertificate(found.gap, found.mean_error, found.dual_error)

    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """That of two normal distributions of one covariance, from how far their means are apart in it."""
        with torch.no_grad():
            apart = self.dual(estimator) - self.dual("exact")
            square = (apart.unsqueeze(-2) @ self.second_moments() @ apart.unsqueeze(-1)).squeeze((-2, -1))
            return torch.special.erf(square.clamp(min=0).sqrt() / 8**0.5)

    def second_moments(self) -> Tensor:
        """Σ_j c_j k_j k_jᵀ, (B, H, m or 1, d, d)."""
        keys = self.templates
        if self.counts is None:
            return (keys.mT @ keys).unsqueeze(2)
        # With one row of counts where queries share them.
        counts = self.counts.expand(*keys.shape[:2], *self.counts.shape[-2:])
        return torch.einsum("bhmn,bhnd,bhne->bhmde", counts, keys, keys)

    def _solved(self, estimator: str) -> Estimate:
        moments = self.second_moments()
        symmetric = (moments + moments.mT) / 2
        preference = Gaussian(torch.zeros_like(symmetric[..., 0]), symmetric)
        return InferenceProblem(preference, self.evidence, self.alpha).solve(estimator)
