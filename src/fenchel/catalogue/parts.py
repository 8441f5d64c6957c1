"""Templates, preference, evidence and values of an inference of an entry, for each kind of inference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fenchel import functional
from fenchel.closeness import AbstractCloseness, OptimalTransport
from fenchel.estimate import Estimate
from fenchel.estimators import InferenceProblem
from fenchel.functional.certificate import AttentionCertificate
from fenchel.preference import Gaussian
from fenchel.tensors import column, log_weights


@dataclass(frozen=True, kw_only=True)
class AbstractParts(ABC):
    """Inferences, one per query, (B, H, m).

    Attributes:
        templates: (B, H, N, d), or (B, H, m, N, d) if they differ by query.
        evidence: (B, H, m, d).
        values: (B, H, N, d_v), or (B, H, m, N, d_v).
        alpha: α > 0, a number or a tensor that broadcasts to (B, H, m).
    """

    templates: Tensor
    evidence: Tensor
    values: Tensor
    alpha: float | Tensor = 1.0

    @abstractmethod
    def output(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""

    @abstractmethod
    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """Bounds on the error of an estimate, each (B, H, m)."""

    @abstractmethod
    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """Total variation between the inferred distribution and the exact one, (B, H, m)."""

    def under(self, closeness: AbstractCloseness | None) -> Self:
        """The same under a closeness, where it leaves its own open."""
        del closeness
        return self


class AbstractFiniteParts(AbstractParts):
    """Inferences over a finite set of templates.

    Attributes:
        log_preference: log u or a mask, broadcasting to (B, H, m, N); None is uniform.
    """

    log_preference: Tensor | None = None

    @abstractmethod
    def _inference(self, estimator: str) -> functional.Inference:
        """The call of :func:`fenchel.functional.infer`."""

    def output(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        return self._inference(estimator).output

    def weights(self, estimator: str = "first_order") -> Tensor:
        """The weights p of the values, (B, H, m, N)."""
        return self._inference(estimator).weights

    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """Bounds on the error of an estimate, each (B, H, m)."""
        with torch.no_grad():
            return self._inference(estimator).certificate

    def preference_weights(self) -> Tensor:
        """The preference u as weights, (B, H, m, N); all 0 in rows with nothing to attend to."""
        shape = (*self.evidence.shape[:3], self.templates.shape[-2])
        if self.log_preference is None:
            return self.evidence.new_full(shape, 1 / shape[-1])
        log_u = log_weights(self.log_preference, self.evidence.dtype)
        return log_u.softmax(-1).nan_to_num(0.0).expand(shape)

    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """Half the sum of the absolute differences of the weights."""
        return (self.weights(estimator) - self.weights("exact")).abs().sum(-1) / 2


@dataclass(frozen=True, kw_only=True)
class Parts(AbstractFiniteParts):
    r"""Templates t, evidence z, values v and log-preference log u of inferences, one per query.

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + D(p, u), \qquad o = \sum_j p_j v_j

    Attributes:
        templates: Scaled, (B, H, n, d); or (B, H, m, n, d) if they differ by query.
        evidence: (B, H, m, d).
        values: (B, H, n, d_v), or (B, H, m, n, d_v).
        log_preference: log u, floating with -inf where masked or bool with True = attend, broadcasting to (B, H, m, n);
            None is uniform.
        alpha: α > 0, a number or a tensor that broadcasts to (B, H, m).
        closeness: D if the mechanism determines it; otherwise None, which defaults to KL.

    Example:
        >>> k, q = torch.eye(3).view(1, 1, 3, 3), torch.tensor([[[[2.0, 0.0, 0.0]]]])
        >>> Parts(templates=k, evidence=q, values=k).output()
        tensor([[[[0.7870, 0.1065, 0.1065]]]])
    """

    log_preference: Tensor | None = None
    closeness: AbstractCloseness | None = None

    @classmethod
    def scaled_dot(
        cls, query: Tensor, key: Tensor, value: Tensor, log_preference: Tensor | None = None
    ) -> Parts:
        """The parts of scaled dot-product attention, t = k/√d and z = q, under a preference."""
        templates = key * key.shape[-1] ** -0.5
        return cls(templates=templates, evidence=query, values=value, log_preference=log_preference)

    def under(self, closeness: AbstractCloseness | None) -> Self:
        """The same under a closeness, where it leaves its own open."""
        return replace(self, closeness=closeness) if self.closeness is None else self

    def _inference(self, estimator: str) -> functional.Inference:
        keys, values, variant = self._with_variant()
        return functional.infer(
            self.evidence,
            keys,
            values,
            log_preference=self.log_preference,
            alpha=self.alpha,
            scale=1.0,
            closeness=self.closeness,
            estimator=estimator,
            variant=variant,
        )

    def _with_variant(self) -> tuple[Tensor, Tensor, functional.Relative | None]:
        """Keys and values, (B, H, n, ...), and a table with a row for each pair if they differ by query."""
        keys, values, value_table = self.templates, self.values, None
        if max(keys.dim(), values.dim()) < 5:
            return keys, values, None
        m, n = self.evidence.shape[2], keys.shape[-2]
        table = keys.new_zeros(1, 1, m * n, keys.shape[-1])
        if keys.dim() == 5:
            keys, table = torch.zeros_like(keys[:, :, 0]), keys.flatten(2, 3)
        if values.dim() == 5:
            values, value_table = torch.zeros_like(values[:, :, 0]), values.flatten(2, 3)
        index = torch.arange(m * n, device=keys.device).view(m, n)
        return keys, values, functional.Relative(table, index, value_table)


@dataclass(frozen=True, kw_only=True)
class GaussianParts(AbstractParts):
    r"""Inferences, one per query, whose preference is a normal distribution on pairs (k, v) with mean 0.

    .. math:: u = \mathcal{N}\Bigl(0, \sum_j c_j \binom{k_j}{v_j}\binom{k_j}{v_j}^{\!\top}\Bigr), \qquad
              o = \mathbb{E}_p[v] = \sum_j c_j v_j\langle k_j, \lambda\rangle

    Its second moments are those of the keys and values. The template of a pair is its key; the mean of values is linear
    in λ, which is αz at first order and :math:`(I/\alpha + \sum_j c_j k_j k_j^\top)^{-1}z` at second, which is
    exact.

    Attributes:
        templates: Keys, (B, H, n, d).
        evidence: (B, H, m, d).
        values: (B, H, n, d_v).
        counts: c ≥ 0, the weight of each pair, broadcasting to (B, H, m, n); None is 1.
        alpha: α > 0.

    Example:
        >>> k = torch.eye(2).view(1, 1, 2, 2)
        >>> parts = GaussianParts(templates=k, evidence=torch.ones(1, 1, 1, 2), values=torch.tensor([[[[3.0], [5.0]]]]))
        >>> parts.output(), parts.output("exact")
        (tensor([[[[8.]]]]), tensor([[[[4.]]]]))
    """

    counts: Tensor | None = None

    def output(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        along = self.dual(estimator) @ self.templates.mT
        return (along if self.counts is None else along * self.counts) @ self.values

    def dual(self, estimator: str = "first_order") -> Tensor:
        """λ, (B, H, m, d)."""
        if estimator == "first_order":
            return column(self.alpha) * self.evidence
        return self._solved(estimator).dual

    def certificate(self, estimator: str = "first_order") -> AttentionCertificate:
        """Bounds on the error of an estimate, each (B, H, m)."""
        with torch.no_grad():
            result = self._solved(estimator)
        return AttentionCertificate(result.gap, result.mean_error, result.dual_error)

    def total_variation(self, estimator: str = "first_order") -> Tensor:
        """Total variation of two normal distributions with the same covariance, from the distance of their means."""
        with torch.no_grad():
            apart = self.dual(estimator) - self.dual("exact")
            square = (apart.unsqueeze(-2) @ self.second_moments() @ apart.unsqueeze(-1)).squeeze((-2, -1))
            return torch.special.erf(square.clamp(min=0).sqrt() / 8**0.5)

    def second_moments(self) -> Tensor:
        """Σ_j c_j k_j k_jᵀ, (B, H, m or 1, d, d)."""
        keys = self.templates
        if self.counts is None:
            return (keys.mT @ keys).unsqueeze(2)
        # With one row of counts if queries share them.
        counts = self.counts.expand(*keys.shape[:2], *self.counts.shape[-2:])
        return torch.einsum("bhmn,bhnd,bhne->bhmde", counts, keys, keys)

    def _solved(self, estimator: str) -> Estimate:
        moments = self.second_moments()
        symmetric = (moments + moments.mT) / 2
        preference = Gaussian(torch.zeros_like(symmetric[..., 0]), symmetric)
        return InferenceProblem(preference, self.evidence, self.alpha).solve(estimator)


@dataclass(frozen=True, kw_only=True)
class RelativeParts(Parts):
    r"""Templates :math:`t_{ij} = k_j + r_{\pi(i,j)}`, evidence, values and log-preference of inferences, one per query.

    .. math:: p_i = \arg\min_p \tfrac\alpha2\lVert\mu_i + z_i - \mathbb{E}_p[t_i]\rVert^2 + D(p, u_i),
              \qquad o_i = \sum_j p_{ij} (v_j + r'_{\pi(i,j)})

    Attributes:
        templates: k, scaled, (B, H, n, d).
        relative: r, scaled likewise, (B or 1, H or 1, P, d).
        index: π, int64 (m, n), the row of each pair; None indexes by distance, as in
            :func:`fenchel.functional.relative_attention`.
        evidence: (B, H, m, d).
        values: (B, H, n, d_v).
        relative_values: r', (B or 1, H or 1, P, d_v), or None.
        log_preference: log u, broadcasting to (B, H, m, n); None is uniform.
        alpha: α > 0, a number or a tensor that broadcasts to (B, H, m).
        closeness: D if the mechanism fixes it; None leaves it open.

    Example:
        >>> k, r = torch.zeros(1, 1, 3, 1), torch.tensor([[[[2.0], [1.0], [0.0], [1.0], [2.0]]]])
        >>> away = RelativeParts(templates=k, relative=r, evidence=-torch.ones(1, 1, 3, 1), values=k)
        >>> away.weights()[0, 0, 0]
        tensor([0.6652, 0.2447, 0.0900])
    """

    relative: Tensor
    index: Tensor | None = None
    relative_values: Tensor | None = None

    def _with_variant(self) -> tuple[Tensor, Tensor, functional.Relative]:
        variant = functional.Relative(self.relative, self.index, self.relative_values)
        return self.templates, self.values, variant


@dataclass(frozen=True, kw_only=True)
class TransportParts(AbstractFiniteParts):
    r"""Templates, evidence and values of inferences, one per query, with entropic transport as closeness.

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\tilde\mu + z - \mathbb{E}_p[t]\rVert^2 + W_\gamma(p, u; M)

    Attributes:
        templates: Those with preference, which is uniform, (B, H, n, d).
        atoms: Further ones that p may use, (B, H, a, d).
        evidence: (B, H, m, d).
        values: Values of the templates, then of the atoms, (B, H, n + a, d_v).
        gamma: γ > 0.
        cost: M, by name.
        alpha: α > 0.

    Example:
        >>> k, q = torch.eye(3).view(1, 1, 3, 3), torch.tensor([[[[2.0, 0.0, 0.0]]]])
        >>> some = {"evidence": q, "values": k, "gamma": 0.5, "cost": "squared_euclidean"}
        >>> TransportParts(templates=k[:, :, :2], atoms=k[:, :, 2:], **some).weights()
        tensor([[[[0.7474, 0.2479, 0.0047]]]])
    """

    atoms: Tensor
    gamma: float | Tensor
    cost: str = "dot"

    @property
    def closeness(self) -> OptimalTransport:
        """D."""
        return OptimalTransport(self.cost, self.gamma, self.atoms, warn=False)

    def preference_weights(self) -> Tensor:
        """Uniform on the templates and 0 on the atoms, (B, H, m, n + a)."""
        return torch.nn.functional.pad(super().preference_weights(), (0, self.atoms.shape[-2]))

    def _inference(self, estimator: str) -> functional.Inference:
        values, atom_values = self.values.split((self.templates.shape[-2], self.atoms.shape[-2]), -2)
        variant = functional.Transport(self.gamma, self.cost, self.atoms, atom_values)
        return functional.infer(
            self.evidence, self.templates, values, alpha=self.alpha, estimator=estimator, variant=variant
        )
