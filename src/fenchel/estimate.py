r"""Estimates and their certificates: bounds on the distance of any dual point from the solution.

Facts 1 and 2 bound errors by :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` in exact arithmetic. Here the gradient is
evaluated in float64 and results are rounded to the problem's dtype; every bound includes both rounding errors.

Let λ be the certified point, c the mean of the templates, :math:`\rho_i = \lVert t_i - c\rVert`, L = ‖λ‖, ε = 2⁻⁵³,
:math:`\lVert x\rVert_p = (\sum p_i x_i^2)^{1/2}`, and κ_k ε the error of a sum of k terms relative to the sum of their
sizes: κ_k = k up to 16 terms, 8 + 2√k beyond (Higham and Mary, 2019).

Evaluated in float64, a potential :math:`\langle t_i - c, \lambda\rangle + \log u_i` is off by δ_i with

.. math:: \lVert\delta\rVert_p \le (\kappa_d + 3)\,\epsilon L\lVert\rho\rVert_p
    + 2\epsilon L(\lVert\rho\rVert_p + \lVert\rho\rVert_u),

and weights by relative errors θ_i with :math:`\lVert\theta\rVert_p \le 2.2\lVert\delta\rVert_p
+ 4\epsilon\max\lvert\log u\rvert + O(\epsilon\log n)`, up to a common factor of at most 1 + (κ_n + 4)ε. The mean is
then off by at most :math:`\lVert\theta\rVert_p\lVert t - h\rVert_p + (2\kappa_n + 8)\,\epsilon\lVert\rho\rVert_p`.

Proof. Products and subtracting c round by the first term; adding :math:`\log u_i = \log p_i + \varphi(\lambda)
- \langle t_i - c, \lambda\rangle` by the second and by ε|log p_i|, since φ(λ) is between
:math:`-L\lVert\rho\rVert_u` and :math:`L\lVert\rho\rVert_p`. Under p the root mean square of
log p_i is of the order of log n. Weights are
:math:`p_i e^{\delta_i}`, normalised, and :math:`e^\delta - 1 \le 1.1\,\delta` for δ ≤ 0.1, beyond which the bounds are
infinite. In :math:`\sum_i p_i\theta_i t_i` one may subtract h from t_i; Cauchy and Schwarz give the first term of the
mean, the common factor and the sum the second.

So :math:`\lVert\nabla\mathcal D(\lambda)\rVert` exceeds its computed value by at most this at λ and at 0, plus ε times
the vectors that are subtracted. Where :math:`L\max\rho \le 1/2`, :math:`p_i - u_i = u_i(e_i - \langle u, e\rangle)
/(1 + \langle u, e\rangle)` with :math:`e_i = e^{\langle t_i - c, \lambda\rangle} - 1` does not cancel, and the shift is
off by :math:`3L\lVert\rho\rVert_u^2(2\kappa_d + 4\kappa_n + O(\log n))\,\epsilon`: this certifies evidence of 10⁻²⁰ of
the templates' norm. Transport adds the rounding of the cost; underflow adds :math:`64\cdot2.2\cdot10^{-308}
(1 + \max\rho)`, without templates 1.5·10⁻¹⁵⁴. Weights rounded to float32 add a relative 2⁻²⁴, half of that in total
variation, to :math:`\sqrt{\mathrm{gap}/2\sigma}`; ``mean_error`` and ``dual_error`` add how far rounding moves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.errors import ProblemError
from fenchel.family import Block, Family
from fenchel.preference import AbstractPreference
from fenchel.problem import DEFAULT_MEMORY_BUDGET, Problem, QueryLayout
from fenchel.tensors import UNIT, first_index, norm, reference_norm

__all__ = ["BOUNDS", "Certificate", "Estimate", "certify", "estimate_of"]

# Bounds of an estimate on its distance from the solution.
BOUNDS = ("gap", "mean_error", "dual_error", "total_variation_error")


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    r"""The result of a solver, with bounds on its distance from the solution.

    Attributes:
        mean: :math:`\hat h`, the inferred mean: the output of attention, shape (..., m, d).
        inferred: p as a list of weights, shape (..., m, n), over all N templates that p may use if the closeness has
            atoms; None if p is not a list of weights. See ``weights``.
        dual: λ, shape (..., m, d).
        gap: Duality gap :math:`P(p(\lambda)) - \mathcal{D}(\lambda)`, which is
            :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2` (fact 1), shape (..., m). It bounds
            :math:`P(p) - P(p^\star)`: under KL for the returned ``weights``, normalised; under other closenesses for
            the weights before rounding, since rounded ones may have no coupling.
        mean_error: Bound on :math:`\lVert \hat h - h^\star\rVert`, shape (..., m).
        dual_error: Bound on :math:`\lVert \lambda - \lambda^\star\rVert`, shape (..., m).
        total_variation_error: Bound on :math:`\frac12\sum_i\lvert p_i - p^\star_i\rvert`, shape (..., m):
            :math:`\sqrt{\mathrm{gap}/2\sigma}` before rounding (fact 2; for KL Pinsker's inequality).
        steps: Steps of the iterative solver, int64, shape (..., m); 0 for the closed forms.
        converged: Whether ``dual_error`` meets the tolerance relative to ‖λ‖; for the closed forms, which have no
            tolerance, whether it meets rounding. bool, shape (..., m). If λ is zero to rounding, below about
            :math:`10^{-15}\lVert\alpha z\rVert`, it is relative to ‖αz‖: λ may then have no correct digit. The bounds
            still hold, and those on mean and weights are the relevant ones.
        alpha: α of each query, shape (..., m).
        modulus: σ, the modulus of strong convexity of D in the 1-norm of the weights: 1 for KL, γ for optimal
            transport, and for :class:`~fenchel.Tsallis` as documented there.
        conjugate: φ of the problem, which gives ``distribution``.

    The bounds hold for the returned tensors, whether ``converged`` or not. They are evaluated in float64 from the
    problem (its data in its dtype) and λ only, never from a solver's state, and include the rounding of this evaluation
    and of the tensors to float32. Infinity means that there is no bound.
    """

    mean: Tensor
    inferred: Tensor | None
    dual: Tensor
    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor
    total_variation_error: Tensor
    steps: Tensor
    converged: Tensor
    alpha: Tensor
    modulus: float | Tensor
    conjugate: Family

    @property
    def distribution(self) -> AbstractPreference:
        r"""The inferred distribution p(λ) of each query, with mean, samples and log density.

        The tilted preference, in the same family if that is closed under tilting; over templates a
        :class:`~fenchel.Discrete` with the weights. It has the gradients of ``dual`` and of the preference.

        Raises:
            DomainError: If rounding λ to the problem's dtype put it outside the domain of log M.

        Example:
            >>> from fenchel import Gaussian, InferenceProblem
            >>> u = Gaussian(torch.zeros(2), variance=1.0)
            >>> estimate = InferenceProblem(u, torch.ones(1, 2), alpha=3.0).solve("second_order")
            >>> estimate.distribution.log_density(torch.full((1, 2), 0.75))          # at its mean
            tensor([-1.8379])
        """
        return self.conjugate.distribution(self.dual)

    @property
    def weights(self) -> Tensor:
        """The weights p, shape (..., m, n).

        Raises:
            ProblemError: If the preference has no list of templates.
        """
        if self.inferred is None:
            raise ProblemError(
                "the preference has no list of templates, so there are no weights; expected a fenchel.Discrete "
                "preference. This estimate has the mean, the dual point and their bounds, and the inferred "
                "distribution, estimate.distribution"
            )
        return self.inferred

    def __repr__(self) -> str:
        weights = "" if self.inferred is None else f"weights={tuple(self.inferred.shape)}, "
        done = f"{int(self.converged.sum())} of {self.converged.numel()} queries"
        worst = float(self.dual_error.max()) if self.dual_error.numel() else 0.0
        return (
            f"Estimate(mean={tuple(self.mean.shape)}, {weights}dtype={self.mean.dtype}, "
            f"converged on {done}, largest dual_error={worst:.2e}, most steps={int(self.steps.max())})"
        )


def rounded_up(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 bound rounded up to another dtype; NaN becomes infinity."""
    rounded = bound.to(dtype)
    up = torch.where(
        rounded.double() < bound, rounded.nextafter(torch.full_like(rounded, torch.inf)), rounded
    )
    return up.nan_to_num(nan=torch.inf, posinf=torch.inf)


def refuse_overflow(estimate: Estimate) -> Estimate:
    """The estimate, if its dtype can represent it.

    Raises:
        ProblemError: If not; the message has the number of queries that overflow, and the first.
    """
    # A sum is cheap, and not finite where a term is not; weights are only where the mean is.
    if bool(torch.isfinite(estimate.dual.sum() + estimate.mean.sum())):
        return estimate
    unfit = ~torch.isfinite(estimate.dual).all(-1) | ~torch.isfinite(estimate.mean).all(-1)
    if bool(unfit.any()):
        where = first_index(unfit)
        dtype = str(estimate.dual.dtype).removeprefix("torch.")
        remedy = "give the problem in float64, or make" if dtype == "float32" else "make"
        raise ProblemError(
            f"the dual point of {int(unfit.sum())} of {unfit.numel()} queries overflows {dtype} (first at index "
            f"{where}, where alpha is {float(estimate.alpha[where]):.2g}): {remedy} alpha, evidence or templates "
            "smaller"
        )
    return estimate


@dataclass(frozen=True, eq=False)
class Certificate:
    r"""A dual point of a block of rows, rounded to the problem's dtype, and its bounds in float64, (g, r, ...).

    Attributes:
        dual, weights, mean: In the problem's dtype; weights are None if p is not a list of weights.
        gap: Fact 1, for the returned weights.
        mean_error: Fact 2, :math:`\lVert h(\lambda)-h^\star\rVert \le \lVert\nabla\mathcal{D}(\lambda)\rVert`.
        dual_error: Fact 2, :math:`\lVert\lambda-\lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert`.
        total_variation_error: Fact 2, at most :math:`\sqrt{\mathrm{gap}/2\sigma}`, here of the returned p.
        reference: The norm that a relative tolerance refers to.
    """

    dual: Tensor
    weights: Tensor | None
    mean: Tensor
    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor
    total_variation_error: Tensor
    reference: Tensor


def certify(block: Block, dual: Tensor, dtype: torch.dtype) -> Certificate:
    r"""The certificate of a dual point, from only the data of its rows.

    Args:
        block: The rows.
        dual: λ, shape (g, r, d); the bounds are evaluated in float64.
        dtype: The dtype to which the results are rounded.

    Returns:
        The certificate, with infinite bounds where numbers overflow float64.
    """
    block, dual = block.to(torch.float64), dual.double()
    alpha, point = block.alpha.squeeze(-1), block.family.at(dual)
    errors, weights, length = point.rounding_errors(), point.weights, _length(dual)
    # The mean's shift rather than two means: at λ = 0 it is then exactly zero.
    size = _length(block.evidence - dual / block.alpha - point.shift) * (1 + (dual.shape[-1] + 4) * UNIT)
    # Of λ/α, and of two differences, the first as long as the gradient and the shift at most.
    differences = UNIT * (2 * length / alpha + _length(point.shift) + 2 * size)
    size = size + errors.shift + differences
    if isinstance(errors.fenchel_young, Tensor):
        # The gap is α/2 times a squared length and this; every bound follows from the gap.
        size = torch.hypot(size, (2 * errors.fenchel_young / alpha).sqrt())
    size = size.nan_to_num(nan=torch.inf, posinf=torch.inf)
    # Rounding the weights to the dtype, which may underflow, moves them and the mean by them.
    weights_error, by_weights = errors.weights, errors.offset
    if weights is not None:
        relative = torch.finfo(dtype).eps / 2 if dtype != torch.float64 else 0.0
        underflow = weights.shape[-1] * torch.finfo(dtype).tiny
        weights_error = (weights_error + relative / 2 + underflow).nan_to_num(nan=torch.inf)
        by_weights = by_weights + relative * errors.spread + underflow * errors.radius
    modulus = torch.as_tensor(block.family.modulus, dtype=dual.dtype, device=dual.device)
    mean, rounded_dual = point.mean, dual.to(dtype)
    rounded_mean = mean.to(dtype)
    by_weights = size + by_weights
    # A gap that underflows float64 is not 0.
    least = by_weights.clamp(max=torch.finfo(torch.float64).tiny)
    gap = alpha / 2 * by_weights.square() + 8 * weights_error**2 + least
    of_solution = (alpha / modulus).sqrt() * size / 2
    # Where nothing is strongly convex the bound is 1.
    total_variation = of_solution.nan_to_num(nan=1.0).clamp(max=1) + weights_error
    if weights is None and dtype != torch.float64 and bool((rounded_dual.double() != dual).any()):
        # The distribution returned is that of the rounded dual point.
        rounded = certify(block, rounded_dual.double(), torch.float64)
        gap, total_variation = rounded.gap, rounded.total_variation_error
    return Certificate(
        rounded_dual,
        None if weights is None else weights.to(dtype),
        rounded_mean,
        gap=gap,
        mean_error=size + errors.mean + _moved(rounded_mean, mean),
        dual_error=alpha * size + _moved(rounded_dual, dual),
        total_variation_error=total_variation,
        reference=reference_norm(length, _length(block.alpha * block.evidence)),
    )


def _length(vectors: Tensor) -> Tensor:
    """Euclidean norms (..., m) of vectors (..., m, d) of any size."""
    return norm(vectors).squeeze(-1)


def _moved(rounded: Tensor, wide: Tensor) -> Tensor:
    """The distance by which rounding moved vectors, (g, r)."""
    return _length(rounded.double() - wide).nan_to_num(nan=torch.inf, posinf=torch.inf)


def estimate_of(
    problem: Problem,
    tol: float,
    solve: Callable[..., tuple[Tensor, Tensor | None]],
    *points: Tensor,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    """The estimate at dual points that are found block by block.

    Args:
        problem: The problem.
        tol: Relative tolerance that ``converged`` reports.
        solve: Takes a block and the points of its rows; returns their dual points and the steps of each, or None.
        *points: As in :meth:`~fenchel.problem.QueryLayout.solved`.
        memory_budget: As there.
    """
    wanted = problem.wants_gradients()
    if wanted:
        # Without a gradient, training would silently do nothing.
        raise ProblemError(
            f"{' and '.join(wanted)} require gradients, which a solver called directly does not support: call "
            "problem.solve, solve under torch.no_grad(), or pass detached tensors"
        )

    def numbers(block: Block, *of_block: Tensor) -> dict[str, Tensor | None]:
        dual, steps = solve(block, *of_block)
        result = certify(block, dual, problem.dtype)
        converged = result.dual_error <= tol * result.reference
        return {
            "mean": result.mean,
            "inferred": result.weights,
            "dual": result.dual,
            **{name: rounded_up(getattr(result, name), problem.dtype) for name in BOUNDS},
            "steps": torch.zeros_like(converged, dtype=torch.int64) if steps is None else steps,
            "converged": converged,
        }

    with torch.no_grad():
        result: dict[str, Tensor] = QueryLayout(problem).solved(numbers, *points, memory_budget=memory_budget)
    result.setdefault("inferred", None)  # pyright: ignore[reportArgumentType]
    estimate = Estimate(
        **result,
        alpha=problem.alpha.expand(problem.shape).clone(),
        modulus=problem.closeness.modulus,
        conjugate=problem.conjugate,
    )
    return refuse_overflow(estimate)
