"""The inference problem: data, its primal and dual objectives, and nothing that solves it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import (
    check_device,
    check_tensor,
    check_vectors,
    checked_argument,
    positive_tensor,
    values_are_known,
)
from fenchel.closeness import KL, AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.preference import Discrete

if TYPE_CHECKING:
    from fenchel.estimate import Estimate

__all__ = ["InferenceProblem"]


class InferenceProblem:
    r"""Find the distribution p near the preference u whose mean is near :math:`\mu + z`.

    .. math::
        \text{primal (3):}\quad & \min_p P(p) = \tfrac{\alpha}{2}\lVert \mu + z - \mathbb{E}_p[t] \rVert^2 + D(p, u) \\
        \text{dual (7):}\quad & \max_\lambda \mathcal{D}(\lambda) =
            \langle \lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - D^*(T\lambda)

    Args:
        preference: u, with templates (..., n, d) and log weights (..., m or 1, n).
        evidence: z, the noisy shift of the mean, shape (..., m, d) with the dtype and device of the templates. Leading
            dimensions broadcast against those of the preference. Half types are converted to float32.
        alpha: α > 0, the reliability of the evidence: a number, or a tensor that broadcasts to (..., m).
        closeness: D: :class:`~fenchel.KL` where None, or :class:`~fenchel.OptimalTransport`, whose atoms p may use
            beside the N = n templates of the preference.

    Raises:
        ProblemError: On shapes, dtypes or devices that do not fit, α ≤ 0, or NaN or infinity anywhere.

    Reference:
        Sections 4 and 6, eqs. (3), (7)–(10).

    Example:
        >>> from fenchel import Discrete
        >>> u = Discrete(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.6, 0.2]], dtype=torch.float64), alpha=2.0)
        >>> estimate = problem.solve("exact", tol=1e-9)
        >>> gap = problem.primal(estimate.weights) - problem.dual(estimate.dual)
        >>> bool(gap.abs().max() < 1e-12)
        True
    """

    def __init__(
        self,
        preference: Discrete,
        evidence: Tensor,
        alpha: float | Tensor = 1.0,
        closeness: AbstractCloseness | None = None,
    ) -> None:
        self.preference = preference
        self.closeness = self._joined_closeness(closeness)
        self.evidence = self._checked_evidence(evidence)
        self.given_dtype = evidence.dtype
        self.alpha = self._checked_alpha(alpha)
        self.shape = self._query_shape()

    def _joined_closeness(self, closeness: AbstractCloseness | None) -> AbstractCloseness:
        if not isinstance(self.preference, Discrete):
            raise ProblemError(
                f"preference is a {type(self.preference).__name__}; expected fenchel.Discrete(templates)"
            )
        if closeness is None:
            return KL()
        if not isinstance(closeness, AbstractCloseness):
            raise ProblemError(
                f"closeness is {shown(closeness)}; expected fenchel.KL() or fenchel.OptimalTransport(cost, gamma)"
            )
        return closeness.between(self.preference)

    def _checked_evidence(self, evidence: Tensor) -> Tensor:
        u = self.preference
        check_tensor("evidence", evidence, "(..., m, d)")
        if evidence.dim() >= 2 and evidence.shape[-2] == 0:
            raise ProblemError(f"evidence z has shape {tuple(evidence.shape)}: there is no query (m = 0)")
        if evidence.dim() < 2 or evidence.shape[-1] != u.dim:
            raise ProblemError(
                f"evidence z has shape {tuple(evidence.shape)}, but templates have dimension {u.dim} (shape "
                f"{tuple(u.templates.shape)}); expected (..., m, {u.dim}): one row a query, in the templates' space"
            )
        if evidence.dtype in (torch.float16, torch.bfloat16):
            evidence = evidence.float()
        if evidence.dtype != u.dtype:
            raise ProblemError(
                f"evidence has dtype {evidence.dtype}, templates {u.dtype}; convert one of them"
            )
        check_device("evidence", evidence, u.device, "templates")
        if values_are_known(evidence) and not bool(torch.isfinite(evidence).all()):
            raise ProblemError("evidence z contains NaN or infinity; every entry must be finite")
        return evidence

    def _checked_alpha(self, alpha: float | Tensor) -> Tensor:
        dtype, device = self.preference.dtype, self.preference.device
        if not isinstance(alpha, Tensor):
            return torch.tensor(checked_argument("alpha", alpha), dtype=dtype, device=device)
        return positive_tensor("alpha", alpha, device, dtype, "that broadcasts to (..., m)").to(dtype)

    def _query_shape(self) -> torch.Size:
        """The shape (..., m) of one number a query."""
        u = self.preference
        parts = {
            "templates": (*self.templates.shape[:-2], 1),
            "log_weights": u.log_weights.shape[:-1],
            "evidence": self.evidence.shape[:-1],
            "alpha": self.alpha.shape,
            **self.closeness.query_shapes(),
        }
        try:
            shape = torch.broadcast_shapes(*parts.values())
        except RuntimeError:
            listed = ", ".join(f"{name} {tuple(part)}" for name, part in parts.items())
            raise ProblemError(
                f"leading dimensions do not broadcast to one shape (..., m): {listed} (templates without n and d, "
                "log_weights without n, evidence without d)"
            ) from None
        others = [name for name in parts if name not in ("templates", "evidence")]
        if shape[-1] != self.evidence.shape[-2]:
            raise ProblemError(
                f"evidence has m = {self.evidence.shape[-2]} queries, but {' or '.join(others)} have {shape[-1]}; "
                "expected the same number, or 1"
            )
        if 0 in shape:
            raise ProblemError(
                f"there is no query: leading dimensions broadcast to (..., m) = {tuple(shape)}; expected at least one "
                "in each of preference, evidence and alpha"
            )
        return shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the problem is computed and answered: float32 or float64."""
        return self.preference.dtype

    @property
    def alpha_column(self) -> Tensor:
        """α with a last dimension of 1, so that it multiplies rows."""
        return self.alpha.unsqueeze(-1)

    @cached_property
    def templates(self) -> Tensor:
        """The templates that p may use, (..., N, d): the preference's, then the atoms of the closeness."""
        return self.closeness.support(self.preference)

    def _check_queries(self, name: str, rows: Tensor) -> None:
        """Refuse a tensor (..., m, any) of other queries than those of the problem."""
        check_tensor(name, rows, f"(..., m, *) with (..., m) = {tuple(self.shape)}")
        try:
            fits = torch.broadcast_shapes(rows.shape[:-1], self.shape)[-1] == self.shape[-1]
        except RuntimeError:
            fits = False
        if not fits:
            have = "have" if name.endswith("s") else "has"
            raise ProblemError(
                f"{name} {have} shape {tuple(rows.shape)}, which does not broadcast to a row for each query: expected "
                f"{(*self.shape, rows.shape[-1])}"
            )

    def potential(self, lam: Tensor) -> Tensor:
        r"""The inner products :math:`T\lambda`, shape (..., m, N) for ``lam`` (..., m, d)."""
        self.preference.check_point("lam", lam)
        return lam @ self.templates.mT

    def rest_weights(self) -> Tensor:
        r"""The weights nearest the preference, shape (..., m or 1, N): u under KL, ũ (37) under transport.

        Their mean is the μ, or μ̃ (38), that evidence shifts.
        """
        return self.closeness.rest(self.preference.log_weights)

    def weights(self, lam: Tensor) -> Tensor:
        r"""Recovery (9): :math:`p(\lambda) = \nabla D^*(T\lambda)`, shape (..., m, N) for ``lam`` (..., m, d)."""
        return self.closeness.weights(self.potential(lam), self.preference.log_weights)

    def mean(self, weights: Tensor) -> Tensor:
        r"""The mean :math:`h = \sum_i p_i t_i` of weights (..., m, N), shape (..., m, d)."""
        n = self.templates.shape[-2]
        check_vectors("weights", weights, f"(..., m, {n}), one for each template", n, self.templates)
        return weights @ self.templates

    def primal(self, weights: Tensor) -> Tensor:
        """The primal objective (3) or (21), shape (..., m); ``inf`` where KL and the weights leave the support of u."""
        self._check_queries("weights", weights)
        shortfall = self.mean(self.rest_weights()) + self.evidence - self.mean(weights)
        fit = self.alpha / 2 * shortfall.square().sum(-1)
        return fit + self.closeness.value(weights, self.preference.log_weights)

    def dual(self, lam: Tensor) -> Tensor:
        """The dual objective (7) at ``lam`` (..., m, d), shape (..., m)."""
        self._check_queries("lam", lam)
        target = self.mean(self.rest_weights()) + self.evidence
        conjugate = self.closeness.conjugate(self.potential(lam), self.preference.log_weights)
        return (lam * target).sum(-1) - lam.square().sum(-1) / (2 * self.alpha) - conjugate

    def dual_gradient(self, lam: Tensor) -> Tensor:
        r""":math:`\nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - h(\lambda)`, shape (..., m, d)."""
        self._check_queries("lam", lam)
        # One product with p - u rather than two with p and u: at λ = 0 the difference is then exactly zero.
        potential, log_preference = self.potential(lam), self.preference.log_weights
        weights = self.closeness.weights(potential, log_preference)
        shift = self.mean(self.closeness.displacement(potential, weights, log_preference))
        return self.evidence - lam / self.alpha_column - shift

    def gap(self, weights: Tensor, lam: Tensor) -> Tensor:
        r"""Duality gap of any pair, without the cancellation of :math:`P(p) - \mathcal{D}(\lambda)`, shape (..., m).

        .. math:: P(p) - \mathcal{D}(\lambda) = \tfrac{\alpha}{2}\lVert \mu + z - \lambda/\alpha -
        \mathbb{E}_p[t]\rVert^2
                  + \bigl(D(p,u) + D^*(T\lambda) - \langle p, T\lambda\rangle\bigr)
        """
        n = self.templates.shape[-2]
        check_vectors("weights", weights, f"(..., m, {n}), one for each template", n, self.templates)
        self._check_queries("weights", weights)
        self._check_queries("lam", lam)
        self.preference.check_point("lam", lam)
        shift = self.mean(self.rest_weights() - weights)
        residual = shift + self.evidence - lam / self.alpha_column
        pairing = self.closeness.fenchel_young_gap(weights, self.potential(lam), self.preference.log_weights)
        return self.alpha / 2 * residual.square().sum(-1) + pairing

    def solve(self, estimator: str = "exact", **options: Any) -> Estimate:
        """Solve by name: ``first_order``, ``second_order``, ``exact``, ``gradient_ascent``, ``constrained``.

        Args:
            estimator: Name of the solver in :mod:`fenchel.solver`.
            options: Its keyword arguments, such as ``tol``, ``max_steps`` and ``throw``.

        Returns:
            The estimate, with bounds on its distance from the solution. Where the problem's data require gradients, its
            ``dual``, ``weights`` and ``mean`` carry them: those of an iterative solver by the implicit function
            theorem.

        Raises:
            ProblemError: If no solver has that name, or data require gradients that it does not carry.
            ConvergenceError: If an iterative solver stops early and ``throw`` is true.
        """
        from fenchel.adjoint import solve_with_gradients

        return solve_with_gradients(self, estimator, **options)

    def to(self, dtype: torch.dtype) -> InferenceProblem:
        """The same problem in another floating-point dtype."""
        if dtype == self.dtype:
            return self
        return InferenceProblem(
            self.preference.to(dtype), self.evidence.to(dtype), self.alpha.to(dtype), self.closeness.to(dtype)
        )

    def __repr__(self) -> str:
        computed = (
            "" if self.given_dtype == self.dtype else f", computed in {self.dtype} (given {self.given_dtype})"
        )
        return (
            f"InferenceProblem(queries={tuple(self.shape)}, templates={self.templates.shape[-2]}, "
            f"dim={self.preference.dim}, closeness={self.closeness!r}{computed})"
        )
