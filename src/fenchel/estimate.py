"""An estimate and the bounds that convexity puts on its error, whatever solver made it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.blocks import DEFAULT_MEMORY_BUDGET, QueryBlock, QueryLayout
from fenchel.closeness import KL, AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.problem import InferenceProblem

__all__ = [
    "Certificate",
    "Estimate",
    "EstimateBuilder",
    "certify",
    "certify_whole",
    "estimate_at",
    "reference_norm",
    "refuse_gradients",
    "whole_estimate",
]


@dataclass(frozen=True, repr=False)
class Estimate:
    r"""What a solver found, and how far at most it is from the solution.

    Attributes:
        mean: :math:`\hat h`, the inferred mean: the output of attention, shape (..., m, d).
        weights: p, shape (..., m, n); over all N templates that p may use, where the closeness has atoms.
        dual: λ, shape (..., m, d).
        gap: Duality gap :math:`P(p(\lambda)) - \mathcal{D}(\lambda) =
        \frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`
            (fact 1), shape (..., m). It bounds the suboptimality of p, and total variation ≤ √(gap/2σ) (fact 2).
        mean_error: Bound on :math:`\lVert \hat h - h^\star\rVert`, shape (..., m).
        dual_error: Bound on :math:`\lVert \lambda - \lambda^\star\rVert`, shape (..., m).
        steps: Steps of the iterative solver, int64, shape (..., m); 0 for the closed forms.
        converged: Whether ``dual_error`` meets the tolerance that was asked for; for the closed forms, which are not
            asked for one, whether it meets rounding. bool, shape (..., m).
        alpha: α of each query, shape (..., m).
        operator_products: Products of one row with the Gram matrix or with the templates, summed over rows.
        modulus: σ, by which D is strongly convex in the 1-norm of the weights: 1 for KL, γ for optimal transport.

    The gap and both bounds are evaluated in float64 from the problem and λ alone, never from a solver's state.
    Where the problem is in float32, ``mean_error`` and ``dual_error`` include the distance by which rounding
    moved the tensors that are returned.
    """

    mean: Tensor
    weights: Tensor
    dual: Tensor
    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor
    steps: Tensor
    converged: Tensor
    alpha: Tensor
    operator_products: int = 0
    modulus: float | Tensor = 1.0

    @property
    def total_variation_error(self) -> Tensor:
        r"""Bound :math:`\sqrt{\mathrm{gap}/2\sigma}` on the total variation between ``weights`` and the solution.

        Shape (..., m). σ is the ``modulus``: for KL this is Pinsker's inequality.
        """
        return (self.gap / (2 * self.modulus)).sqrt().clamp(max=1.0)

    def __repr__(self) -> str:
        done = f"{int(self.converged.sum())} of {self.converged.numel()} queries"
        worst = float(self.dual_error.max()) if self.dual_error.numel() else 0.0
        return (
            f"Estimate(mean={tuple(self.mean.shape)}, weights={tuple(self.weights.shape)}, dtype={self.mean.dtype}, "
            f"converged on {done}, largest dual_error={worst:.2e}, most steps={int(self.steps.max())})"
        )


@dataclass(frozen=True)
class Certificate:
    """A dual point of a block of rows, rounded to the problem's dtype, and what it certifies, (g, r, ...).

    Attributes:
        dual, weights, mean: As they are returned, in the problem's dtype.
        gradient_norm: Norm of the dual's gradient before rounding, float64.
        dual_moved, mean_moved: How far rounding moved ``dual`` and ``mean``, float64.
        alpha: α, float64.
        reference: What a relative tolerance is relative to, float64.
    """

    dual: Tensor
    weights: Tensor
    mean: Tensor
    gradient_norm: Tensor
    dual_moved: Tensor
    mean_moved: Tensor
    alpha: Tensor
    reference: Tensor

    @property
    def dual_error(self) -> Tensor:
        r"""Fact 2: :math:`\lVert\lambda-\lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert`."""
        return self.alpha * self.gradient_norm + self.dual_moved

    @property
    def mean_error(self) -> Tensor:
        r"""Fact 2: :math:`\lVert h(\lambda)-h^\star\rVert \le \lVert\nabla\mathcal{D}(\lambda)\rVert`."""
        return self.gradient_norm + self.mean_moved

    @property
    def gap(self) -> Tensor:
        r"""Fact 1: :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`."""
        return self.alpha / 2 * self.gradient_norm.square()

    def meets(self, tol: float) -> Tensor:
        """Where the relative tolerance on λ is met, bool (g, r)."""
        return self.dual_error <= tol * self.reference


def certify(block: QueryBlock, dual: Tensor, closeness: AbstractCloseness, dtype: torch.dtype) -> Certificate:
    r"""The certificate of a dual point, from the data of its rows alone.

    Args:
        block: The rows, in float64.
        dual: λ in float64, shape (g, r, d).
        closeness: D.
        dtype: The dtype to which the results are rounded.

    Returns:
        Weights p(λ), their mean, :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` and the norm that a relative
        tolerance refers to.
    """
    preference = block.log_preference
    weights = closeness.weights(dual @ block.templates.mT, preference)
    at_zero = closeness.rest(preference)
    # The mean's shift rather than two means: at λ = 0 it is then exactly zero.
    shift = (weights - at_zero) @ block.templates
    gradient = block.evidence - dual / block.alpha - shift
    mean = at_zero @ block.templates + shift
    rounded_mean, rounded_dual = mean.to(dtype), dual.to(dtype)
    return Certificate(
        dual=rounded_dual,
        weights=weights.to(dtype),
        mean=rounded_mean,
        gradient_norm=gradient.norm(dim=-1),
        dual_moved=(rounded_dual.double() - dual).norm(dim=-1),
        mean_moved=(rounded_mean.double() - mean).norm(dim=-1),
        alpha=block.alpha.squeeze(-1).expand(gradient.shape[:-1]).clone(),
        reference=reference_norm(dual.norm(dim=-1), (block.alpha * block.evidence).norm(dim=-1)),
    )


def reference_norm(dual_norm: Tensor, first_order_norm: Tensor) -> Tensor:
    r"""What a relative tolerance is relative to: ‖λ‖, or ‖αz‖ where λ is zero to rounding."""
    rounding = 16 * torch.finfo(dual_norm.dtype).eps
    return torch.where(dual_norm > rounding * first_order_norm, dual_norm, first_order_norm)


def rounded_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 bound in another dtype, never below what it was."""
    rounded = bound.to(dtype)
    return torch.where(
        rounded.double() < bound, rounded.nextafter(torch.full_like(rounded, torch.inf)), rounded
    )


class EstimateBuilder:
    """Collects certificates block by block into one estimate in the problem's dtype and shape.

    Args:
        layout: How the problem's queries are laid out in rows.
        tol: Relative tolerance that ``converged`` reports.
    """

    def __init__(self, layout: QueryLayout, tol: float) -> None:
        preference = layout.problem.preference
        refuse_gradients(layout.problem)
        self._layout, self._tol = layout, tol
        self._mean = layout.empty(preference.dim)
        self._dual = layout.empty(preference.dim)
        self._weights = layout.empty(preference.support_size)
        self._gap, self._mean_error, self._dual_error = layout.empty(), layout.empty(), layout.empty()
        self._steps = layout.empty(dtype=torch.int64).zero_()
        self._converged = layout.empty(dtype=torch.bool)
        self.operator_products = 0

    def put(
        self, groups: Tensor, rows: Tensor, certificate: Certificate, steps: Tensor | None = None
    ) -> None:
        """Store the certificate of the rows at indices that broadcast to (g, r)."""
        where = (groups, rows)
        dtype = self._mean.dtype
        self._mean[where], self._dual[where] = certificate.mean, certificate.dual
        self._weights[where] = certificate.weights
        self._gap[where] = rounded_up(certificate.gap, dtype)
        self._mean_error[where] = rounded_up(certificate.mean_error, dtype)
        self._dual_error[where] = rounded_up(certificate.dual_error, dtype)
        self._converged[where] = certificate.meets(self._tol)
        if steps is not None:
            self._steps[where] = steps

    def build(self) -> Estimate:
        """The estimate over all blocks that were put."""
        back = self._layout.restore
        return Estimate(
            mean=back(self._mean),
            weights=back(self._weights),
            dual=back(self._dual),
            gap=back(self._gap),
            mean_error=back(self._mean_error),
            dual_error=back(self._dual_error),
            steps=back(self._steps),
            converged=back(self._converged),
            alpha=self._layout.problem.alpha.expand(self._layout.lead).clone(),
            operator_products=self.operator_products,
        )


def refuse_gradients(problem: InferenceProblem) -> None:
    """An estimate without the gradient that its user counts on would train in silence on nothing."""
    if not torch.is_grad_enabled():
        return
    parts = {
        "templates": problem.preference.templates,
        "log_weights": problem.preference.log_weights,
        "evidence": problem.evidence,
        "alpha": problem.alpha,
        **problem.closeness.parameters(),
    }
    wanted = [name for name, part in parts.items() if part.requires_grad]
    if wanted:
        raise ProblemError(
            f"{' and '.join(wanted)} require gradients, which a solver that is called by itself does not carry: call "
            "problem.solve, solve under torch.no_grad(), or give detached tensors"
        )


CERTIFYING_ARRAYS = 6
"""Arrays of shape (rows, max(n, d)) that :func:`certify` keeps at once."""


def estimate_at(
    problem: InferenceProblem, dual: Tensor, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> Estimate:
    """The estimate that a dual point (..., m, d) gives, with its bounds.

    ``converged`` then says where λ is the solution to the rounding of the problem's dtype.
    """
    rounding = 64 * torch.finfo(problem.dtype).eps
    if not isinstance(problem.closeness, KL):
        return whole_estimate(problem, dual, tol=rounding)
    layout = QueryLayout(problem)
    builder = EstimateBuilder(layout, tol=rounding)
    arranged = layout.arrange(dual)
    for groups, rows, block in layout.blocks(memory_budget, CERTIFYING_ARRAYS, itemsize=8):
        where = (groups[:, None], rows[None, :])
        at = arranged[where].double()
        builder.put(*where, certify(block.to(torch.float64), at, problem.closeness, problem.dtype))
    return builder.build()


def whole_estimate(
    problem: InferenceProblem, dual: Tensor, *, tol: float, steps: Tensor | None = None
) -> Estimate:
    """The estimate that a dual point (..., m, d) gives under any closeness, all queries at once.

    Args:
        problem: The problem.
        dual: λ.
        tol: Relative tolerance that ``converged`` reports.
        steps: Steps that were taken, (..., m).
    """
    refuse_gradients(problem)
    with torch.no_grad():
        certificate = certify_whole(problem, dual)
    lead = tuple(problem.shape)
    return Estimate(
        mean=certificate.mean,
        weights=certificate.weights,
        dual=certificate.dual,
        gap=rounded_up(certificate.gap, problem.dtype),
        mean_error=rounded_up(certificate.mean_error, problem.dtype),
        dual_error=rounded_up(certificate.dual_error, problem.dtype),
        steps=torch.zeros(lead, dtype=torch.int64, device=dual.device) if steps is None else steps,
        converged=certificate.meets(tol),
        alpha=problem.alpha.expand(lead).clone(),
        modulus=problem.closeness.modulus,
    )


def certify_whole(problem: InferenceProblem, dual: Tensor) -> Certificate:
    """The certificate of a dual point (..., m, d) of any dtype, rounded to the problem's."""
    wide = problem.to(torch.float64)
    evidence = wide.evidence.expand(*problem.shape, -1)
    rows = QueryBlock(wide.templates, wide.preference.log_weights, evidence, wide.alpha_column)
    return certify(rows, dual.double().expand_as(evidence), wide.closeness, problem.dtype)
