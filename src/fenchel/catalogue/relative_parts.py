"""Inferences whose templates differ by query: a key, and a vector of the pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel import functional
from fenchel.catalogue.abstract_parts import AbstractFiniteParts
from fenchel.closeness import AbstractCloseness
from fenchel.functional.inference import AttentionCertificate
from fenchel.functional.relative import distance_index

__all__ = ["RelativeParts"]


@dataclass(frozen=True, kw_only=True)
class RelativeParts(AbstractFiniteParts):
    r"""Templates :math:`t_{ij} = k_j + r_{\pi(i,j)}`, evidence, values and log-preference of inferences, one a query.

    .. math:: p_i = \arg\min_p \tfrac\alpha2\lVert\mu_i + z_i - \mathbb{E}_p[t_i]\rVert^2 + D(p, u_i),
              \qquad o_i = \sum_j p_{ij} (v_j + r'_{\pi(i,j)})

    Attributes:
        templates: k, scaled, (B, H, n, d).
        relative: r, scaled likewise, (B or 1, H or 1, P, d).
        index: π, int64 (m, n), the row of each pair; None is by distance, as
            :func:`fenchel.functional.relative_attention` has it.
        evidence: (B, H, m, d).
        values: (B, H, n, d_v).
        relative_values: r', (B or 1, H or 1, P, d_v), or None.
        log_preference: log u, broadcasting to (B, H, m, n); None is uniform.
        alpha: α > 0, a number or a tensor that broadcasts to (B, H, m).
        closeness: D where the mechanism fixes it; None leaves it open.

    Example:
        >>> k, r = torch.zeros(1, 1, 3, 1), torch.tensor([[[[2.0], [1.0], [0.0], [1.0], [2.0]]]])
        >>> away = RelativeParts(templates=k, relative=r, evidence=-torch.ones(1, 1, 3, 1), values=k)
        >>> away.weights()[0, 0, 0]
        tensor([0.6652, 0.2447, 0.0900])
    """

    templates: Tensor
    relative: Tensor
    evidence: Tensor
    values: Tensor
    index: Tensor | None = None
    relative_values: Tensor | None = None
    log_preference: Tensor | None = None
    alpha: float | Tensor = 1.0
    closeness: AbstractCloseness | None = None

    def answer(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        of_values = {"relative_value": self.relative_values, "estimator": estimator}
        return functional.relative_attention(
            self.evidence, self.templates, self.values, **of_values, **self._options()
        )

    def weights(self, estimator: str = "first_order") -> Tensor:
        """The weights p, (B, H, m, n)."""
        return functional.relative_attention_weights(
            self.evidence, self.templates, estimator=estimator, **self._options()
        )

    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """What an estimate certifies about itself, each (B, H, m)."""
        with torch.no_grad():
            return functional.relative_attention_with_certificate(
                self.evidence, self.templates, self.values, estimator=estimator, **self._options()
            )[1]

    def mean_under(self, weights: Tensor) -> Tensor:
        """The mean of the values of pairs, (B, H, m, d_v)."""
        found = super().mean_under(weights)
        if self.relative_values is None:
            return found
        index = self.index
        if index is None:
            index = distance_index(weights.shape[-2], weights.shape[-1], weights.device)
        return found + (weights.unsqueeze(-1) * self.relative_values[:, :, index]).sum(-2)

    def under(self, closeness: AbstractCloseness | None) -> RelativeParts:
        """The same under a closeness, where it leaves its own open."""
        return replace(self, closeness=closeness) if self.closeness is None else self

    def _options(self) -> dict[str, Any]:
        return {
            "relative": self.relative,
            "index": self.index,
            "log_preference": self.log_preference,
            "alpha": self.alpha,
            "scale": 1.0,
            "closeness": self.closeness,
        }
