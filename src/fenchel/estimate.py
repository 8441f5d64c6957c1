"""An estimate and the bounds that convexity puts on its error, whatever solver made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.blocks import DEFAULT_MEMORY_BUDGET, QueryBlock, QueryLayout
from fenchel.certificate import Certificate, certify
from fenchel.closeness import KL
from fenchel.errors import ProblemError
from fenchel.problem import InferenceProblem

__all__ = [
    "Estimate",
    "EstimateBuilder",
    "certify_whole",
    "estimate_at",
    "refuse_gradients",
    "whole_estimate",
]


BOUNDS = ("gap", "mean_error", "dual_error", "total_variation_error")
"""What an estimate says of its distance from the solution."""


@dataclass(frozen=True, repr=False)
class Estimate:
    r"""What a solver found, and how far at most it is from the solution.

    Attributes:
        mean: :math:`\hat h`, the inferred mean: the output of attention, shape (..., m, d).
        weights: p, shape (..., m, n); over all N templates that p may use, where the closeness has atoms.
        dual: λ, shape (..., m, d).
        gap: Duality gap :math:`P(p(\lambda)) - \mathcal{D}(\lambda)`, which is
            :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2` (fact 1), shape (..., m). At most this much
            is :math:`P(p) - P(p^\star)`: under KL for the ``weights`` that are returned, normalised; under optimal
            transport for those before rounding, since no coupling may reach rounded ones.
        mean_error: Bound on :math:`\lVert \hat h - h^\star\rVert`, shape (..., m).
        dual_error: Bound on :math:`\lVert \lambda - \lambda^\star\rVert`, shape (..., m).
        total_variation_error: Bound on :math:`\frac12\sum_i\lvert p_i - p^\star_i\rvert`, shape (..., m):
            :math:`\sqrt{\mathrm{gap}/2\sigma}` before rounding (fact 2; for KL Pinsker's inequality).
        steps: Steps of the iterative solver, int64, shape (..., m); 0 for the closed forms.
        converged: Whether ``dual_error`` meets the tolerance that was asked for, relative to ‖λ‖; for the closed
            forms, which are not asked for one, whether it meets rounding. bool, shape (..., m). Where λ is zero to
            rounding, below about :math:`10^{-15}\lVert\alpha z\rVert`, it is relative to ‖αz‖: λ may then be wrong in
            every digit. The bounds hold there too, and those on mean and weights say what the answer is worth.
        alpha: α of each query, shape (..., m).
        operator_products: Products of one row with the Gram matrix or with the templates, summed over rows.
        modulus: σ, by which D is strongly convex in the 1-norm of the weights: 1 for KL, γ for optimal transport.

    The bounds hold for the tensors that are returned, whether ``converged`` or not. They are evaluated in float64 from
    the problem (its data in its dtype) and λ alone, never from a solver's state, and include what that evaluation
    may lose and how far rounding to float32 moved the tensors. Infinity says that nothing can be said.
    """

    mean: Tensor
    weights: Tensor
    dual: Tensor
    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor
    total_variation_error: Tensor
    steps: Tensor
    converged: Tensor
    alpha: Tensor
    operator_products: int = 0
    modulus: float | Tensor = 1.0

    def __repr__(self) -> str:
        done = f"{int(self.converged.sum())} of {self.converged.numel()} queries"
        worst = float(self.dual_error.max()) if self.dual_error.numel() else 0.0
        return (
            f"Estimate(mean={tuple(self.mean.shape)}, weights={tuple(self.weights.shape)}, dtype={self.mean.dtype}, "
            f"converged on {done}, largest dual_error={worst:.2e}, most steps={int(self.steps.max())})"
        )


def rounded_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 bound in another dtype, never below what it was, or infinity where there is none."""
    rounded = bound.to(dtype)
    up = torch.where(
        rounded.double() < bound, rounded.nextafter(torch.full_like(rounded, torch.inf)), rounded
    )
    return up.nan_to_num(nan=torch.inf, posinf=torch.inf)


def refuse_overflow(estimate: Estimate) -> Estimate:
    """An answer that its dtype cannot hold is none.

    Raises:
        ProblemError: Naming how many queries, and the first.
    """
    # A sum is cheap, and not finite where a term is not; weights are only where the mean is.
    if bool(torch.isfinite(estimate.dual.sum() + estimate.mean.sum())):
        return estimate
    lost = ~torch.isfinite(estimate.dual).all(-1) | ~torch.isfinite(estimate.mean).all(-1)
    if bool(lost.any()):
        where = tuple(int(i) for i in lost.nonzero()[0])
        dtype = str(estimate.dual.dtype).removeprefix("torch.")
        remedy = "give the problem in float64, or make" if dtype == "float32" else "make"
        raise ProblemError(
            f"the dual point of {int(lost.sum())} of {lost.numel()} queries does not fit {dtype} (first at "
            f"index {where}, where alpha is {float(estimate.alpha[where]):.2g}): {remedy} alpha, evidence or "
            "templates smaller"
        )
    return estimate


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
        self._bounds = {name: layout.empty() for name in BOUNDS}
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
        for name, bound in self._bounds.items():
            bound[where] = rounded_up(getattr(certificate, name), dtype)
        self._converged[where] = certificate.meets(self._tol)
        if steps is not None:
            self._steps[where] = steps

    def build(self) -> Estimate:
        """The estimate over all blocks that were put."""
        back = self._layout.restore
        estimate = Estimate(
            mean=back(self._mean),
            weights=back(self._weights),
            dual=back(self._dual),
            **{name: back(bound) for name, bound in self._bounds.items()},
            steps=back(self._steps),
            converged=back(self._converged),
            alpha=self._layout.problem.alpha.expand(self._layout.lead).clone(),
            operator_products=self.operator_products,
        )
        return refuse_overflow(estimate)


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
    bounds: dict[str, Any] = {name: rounded_up(getattr(certificate, name), problem.dtype) for name in BOUNDS}
    estimate = Estimate(
        mean=certificate.mean,
        weights=certificate.weights,
        dual=certificate.dual,
        **bounds,
        steps=torch.zeros(lead, dtype=torch.int64, device=dual.device) if steps is None else steps,
        converged=certificate.meets(tol),
        alpha=problem.alpha.expand(lead).clone(),
        modulus=problem.closeness.modulus,
    )
    return refuse_overflow(estimate)


def certify_whole(problem: InferenceProblem, dual: Tensor) -> Certificate:
    """The certificate of a dual point (..., m, d) of any dtype, rounded to the problem's."""
    wide = problem.to(torch.float64)
    evidence = wide.evidence.expand(*problem.shape, -1)
    rows = QueryBlock(wide.templates, wide.preference.log_weights, evidence, wide.alpha_column)
    return certify(rows, dual.double().expand_as(evidence), wide.closeness, problem.dtype)
