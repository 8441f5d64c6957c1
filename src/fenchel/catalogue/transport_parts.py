"""Inferences under optimal transport, whose weights reach further than the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fenchel import functional
from fenchel.catalogue.abstract_parts import AbstractFiniteParts
from fenchel.closeness import OptimalTransport
from fenchel.estimate import Estimate
from fenchel.functional.inference import AttentionCertificate
from fenchel.inference import InferenceProblem
from fenchel.preference import Discrete

__all__ = ["TransportParts"]


@dataclass(frozen=True, kw_only=True)
class TransportParts(AbstractFiniteParts):
    r"""Templates, evidence and values of inferences that are kept near u by entropic transport, one a query.

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\tilde\mu + z - \mathbb{E}_p[t]\rVert^2 + W_\gamma(p, u; M)

    Attributes:
        templates: Those that the preference is on, uniformly, (B, H, n, d).
        atoms: Further ones that p may use, (B, H, a, d).
        evidence: (B, H, m, d).
        values: Of the templates, then the atoms, (B, H, n + a, d_v).
        gamma: γ > 0.
        cost: M, by name.
        alpha: α > 0.

    Example:
        >>> k, q = torch.eye(3).view(1, 1, 3, 3), torch.tensor([[[[2.0, 0.0, 0.0]]]])
        >>> some = {"evidence": q, "values": k, "gamma": 0.5, "cost": "squared_euclidean"}
        >>> TransportParts(templates=k[:, :, :2], atoms=k[:, :, 2:], **some).weights()
        tensor([[[[0.7474, 0.2479, 0.0047]]]])
    """

    templates: Tensor
    atoms: Tensor
    evidence: Tensor
    values: Tensor
    gamma: float | Tensor
    cost: str = "dot"
    alpha: float | Tensor = 1.0

    @property
    def closeness(self) -> OptimalTransport:
        """D."""
        return OptimalTransport(self.cost, self.gamma, self.atoms, warn=False)

    def answer(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v), without making the weights."""
        n = self.templates.shape[-2]
        return functional.transport_attention(
            self.evidence,
            self.templates,
            self.values[..., :n, :],
            atoms=self.atoms,
            atom_values=self.values[..., n:, :],
            alpha=self.alpha,
            gamma=self.gamma,
            cost=self.cost,
            estimator=estimator,
        )

    def weights(self, estimator: str = "first_order") -> Tensor:
        """The weights of templates, then atoms, (B, H, m, n + a)."""
        return cast("Tensor", self._solved(estimator).weights)

    def believed(self) -> Tensor:
        """Uniform on the templates and 0 on the atoms, (B, H, m, n + a)."""
        n, further = self.templates.shape[-2], self.atoms.shape[-2]
        on_keys = self.evidence.new_full((*self.evidence.shape[:3], n), 1 / n)
        return torch.nn.functional.pad(on_keys, (0, further))

    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """What an estimate certifies about itself, each (B, H, m)."""
        with torch.no_grad():
            found = self._solved(estimator)
        return AttentionCertificate(found.gap, found.mean_error, found.dual_error)

    def _solved(self, estimator: str) -> Estimate:
        problem = InferenceProblem(Discrete(self.templates), self.evidence, self.alpha, self.closeness)
        return problem.solve(estimator, **({"tol": 1e-10} if estimator == "exact" else {}))
