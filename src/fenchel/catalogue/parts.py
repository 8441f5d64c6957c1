"""One inference a query as tensors: what an entry of the catalogue says a mechanism is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel import functional
from fenchel.catalogue.abstract_parts import AbstractFiniteParts
from fenchel.closeness import AbstractCloseness
from fenchel.functional.inference import AttentionCertificate

__all__ = ["Parts"]


@dataclass(frozen=True, kw_only=True)
class Parts(AbstractFiniteParts):
    r"""Templates t, evidence z, values v and log-preference log u of inferences, one a query.

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + D(p, u), \qquad o = \sum_j p_j v_j

    Attributes:
        templates: Scaled, (B, H, n, d); or (B, H, m, n, d), where they differ by query.
        evidence: (B, H, m, d).
        values: (B, H, n, d_v), or (B, H, m, n, d_v).
        log_preference: log u, floating with -inf where masked or bool with True = attend, broadcasting to (B, H, m, n);
            None is uniform.
        alpha: α > 0, a number or a tensor that broadcasts to (B, H, m).
        closeness: D where the mechanism fixes it; None leaves it open, and is Kullback and Leibler's where nothing is
            said.

    Example:
        >>> k, q = torch.eye(3).view(1, 1, 3, 3), torch.tensor([[[[2.0, 0.0, 0.0]]]])
        >>> Parts(templates=k, evidence=q, values=k).answer()
        tensor([[[[0.7870, 0.1065, 0.1065]]]])
    """

    templates: Tensor
    evidence: Tensor
    values: Tensor
    log_preference: Tensor | None = None
    alpha: float | Tensor = 1.0
    closeness: AbstractCloseness | None = None

    @classmethod
    def scaled_dot(
        cls, query: Tensor, key: Tensor, value: Tensor, log_preference: Tensor | None = None
    ) -> Parts:
        """Those of scaled dot-product attention, t = k/√d and z = q, under a preference."""
        templates = key * key.shape[-1] ** -0.5
        return cls(templates=templates, evidence=query, values=value, log_preference=log_preference)

    @property
    def differs_by_query(self) -> bool:
        """Whether every query has templates, or values, of its own."""
        return self.templates.dim() == 5 or self.values.dim() == 5

    def answer(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        one = self._one_query_each()
        found = functional.attention(
            one.evidence, one.templates, one.values, estimator=estimator, **one._options()
        )
        return self._unfolded(found)

    def weights(self, estimator: str = "first_order") -> Tensor:
        """The weights p, (B, H, m, n)."""
        one = self._one_query_each()
        found = functional.attention_weights(
            one.evidence, one.templates, estimator=estimator, **one._options()
        )
        return self._unfolded(found)

    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """What an estimate certifies about itself, each (B, H, m)."""
        one = self._one_query_each()
        with torch.no_grad():
            _, found = functional.attention_with_certificate(
                one.evidence, one.templates, one.values, estimator=estimator, **one._options()
            )
        return AttentionCertificate(*(self._unfolded(bound.unsqueeze(-1)).squeeze(-1) for bound in found))

    def under(self, closeness: AbstractCloseness | None) -> Parts:
        """The same under a closeness, where it leaves its own open."""
        return replace(self, closeness=closeness) if self.closeness is None else self

    def _options(self) -> dict[str, Any]:
        return {
            "log_preference": self.log_preference,
            "alpha": self.alpha,
            "scale": 1.0,
            "closeness": self.closeness,
        }

    def _one_query_each(self) -> Parts:
        """The same with queries as a further batch, where their templates differ: (B m, H, 1 query, ...)."""
        if not self.differs_by_query:
            return self
        batch, heads, queries = self.evidence.shape[:3]
        keys = self.templates.shape[-2]

        def of_query(tensor: Tensor) -> Tensor:
            own = tensor if tensor.dim() == 5 else tensor.unsqueeze(2).expand(-1, -1, queries, -1, -1)
            return own.transpose(1, 2).flatten(0, 1)

        log_u, alpha = self.log_preference, self.alpha
        if log_u is not None:
            log_u = log_u.expand(batch, heads, queries, keys).transpose(1, 2).flatten(0, 1).unsqueeze(2)
        if isinstance(alpha, Tensor):
            alpha = alpha.expand(batch, heads, queries).transpose(1, 2).flatten(0, 1).unsqueeze(2)
        return replace(
            self,
            templates=of_query(self.templates),
            evidence=self.evidence.transpose(1, 2).flatten(0, 1).unsqueeze(2),
            values=of_query(self.values),
            log_preference=log_u,
            alpha=alpha,
        )

    def _unfolded(self, found: Tensor) -> Tensor:
        if not self.differs_by_query:
            return found
        return found.squeeze(2).unflatten(0, (-1, self.evidence.shape[2])).transpose(1, 2)
