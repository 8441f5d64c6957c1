"""An estimate and the bounds that convexity puts on its error, whatever solver made it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.certificate import Certificate, certify
from fenchel.conjugate import AbstractConjugate, FiniteConjugate
from fenchel.errors import ProblemError
from fenchel.layout import DEFAULT_MEMORY_BUDGET, QueryLayout, layout_of
from fenchel.preference import AbstractPreference
from fenchel.problem import Problem

__all__ = ["BOUNDS", "Estimate", "EstimateBuilder", "estimate_at", "refuse_gradients"]

BOUNDS = ("gap", "mean_error", "dual_error", "total_variation_error")
"""What an estimate says of its distance from the solution."""


@dataclass(frozen=True, repr=False)
class Estimate:
    r"""What a solver found, and how far at most it is from the solution.

    Attributes:
        mean: :math:`\hat h`, the inferred mean: the output of attention, shape (..., m, d).
        inferred: p as a list of weights, shape (..., m, n), over all N templates that p may use where the closeness
            has atoms; None where p is none. See ``weights``.
        dual: λ, shape (..., m, d).
        gap: Duality gap :math:`P(p(\lambda)) - \mathcal{D}(\lambda)`, which is
            :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2` (fact 1), shape (..., m). At most this much
            is :math:`P(p) - P(p^\star)`: under KL for the ``weights`` that are returned, normalised; under other
            closenesses for those before rounding, since no coupling may reach rounded ones.
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
        modulus: σ, by which D is strongly convex in the 1-norm of the weights: 1 for KL, γ for optimal transport;
            :class:`~fenchel.Tsallis` says its own.
        conjugate: φ of the problem, which knows the distribution of a dual point. See ``distribution``.

    The bounds hold for the tensors that are returned, whether ``converged`` or not. They are evaluated in float64
    from the problem (its data in its dtype) and λ alone, never from a solver's state, and include what that
    evaluation may lose and how far rounding to float32 moved the tensors. Infinity says that nothing can be said.
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
    modulus: float | Tensor = 1.0
    conjugate: AbstractConjugate | None = None

    @property
    def distribution(self) -> AbstractPreference:
        r"""P(λ), the inferred distribution of each query, made when asked for: mean, samples, log density.

        The preference tilted, within its family where that is closed; over templates a :class:`~fenchel.Discrete` of
        the weights. It carries the gradients of ``dual`` and of the preference.

        Raises:
            DomainError: Where rounding λ to the problem's dtype put it outside of the domain of log M.
            ProblemError: If the estimate was made by hand and knows no problem.

        Example:
            >>> from fenchel import Gaussian, InferenceProblem
            >>> u = Gaussian(torch.zeros(2), variance=1.0)
            >>> estimate = InferenceProblem(u, torch.ones(1, 2), alpha=3.0).solve("second_order")
            >>> estimate.distribution.log_density(torch.full((1, 2), 0.75))          # at its mean
            tensor([-1.8379])
        """
        if self.conjugate is None:
            raise ProblemError(
                "this estimate knows no distribution, since it was made by hand; expected one that problem.solve gave"
            )
        return self.conjugate.distribution(self.dual)

    @property
    def weights(self) -> Tensor:
        """P as a list of weights, shape (..., m, n).

        Raises:
            ProblemError: Where the preference is no list of templates.
        """
        if self.inferred is None:
            raise ProblemError(
                "the preference has no list of templates, so that there are no weights; expected a fenchel.Discrete "
                "preference. The mean, the dual point and their bounds are in this estimate, and the inferred "
                "distribution is estimate.distribution"
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
        problem: Whose.
        tol: Relative tolerance that ``converged`` reports.

    Attributes:
        layout: How the problem's queries are laid out in rows.
    """

    layout: QueryLayout

    def __init__(self, problem: Problem, tol: float) -> None:
        refuse_gradients(problem)
        conjugate = problem.conjugate
        self.layout = layout = layout_of(problem)
        self._tol, self._modulus = tol, conjugate.modulus
        self._mean = layout.empty(conjugate.dim)
        self._dual = layout.empty(conjugate.dim)
        finite = isinstance(conjugate, FiniteConjugate)
        self._weights = layout.empty(conjugate.templates.shape[-2]) if finite else None
        self._bounds = {name: layout.empty() for name in BOUNDS}
        self._steps = layout.empty(dtype=torch.int64).zero_()
        self._converged = layout.empty(dtype=torch.bool)

    def put(
        self, groups: Tensor, rows: Tensor, certificate: Certificate, steps: Tensor | None = None
    ) -> None:
        """Store the certificate of the rows at indices that broadcast to (g, r)."""
        where = (groups, rows)
        dtype = self._mean.dtype
        self._mean[where], self._dual[where] = certificate.mean, certificate.dual
        if self._weights is not None and certificate.weights is not None:
            self._weights[where] = certificate.weights
        for name, bound in self._bounds.items():
            bound[where] = rounded_up(getattr(certificate, name), dtype)
        self._converged[where] = certificate.meets(self._tol)
        if steps is not None:
            self._steps[where] = steps

    def build(self) -> Estimate:
        """The estimate over all blocks that were put."""
        back = self.layout.restore
        estimate = Estimate(
            mean=back(self._mean),
            inferred=None if self._weights is None else back(self._weights),
            dual=back(self._dual),
            **{name: back(bound) for name, bound in self._bounds.items()},
            steps=back(self._steps),
            converged=back(self._converged),
            alpha=self.layout.problem.alpha.expand(self.layout.lead).clone(),
            modulus=self._modulus,
            conjugate=self.layout.problem.conjugate,
        )
        return _refuse_unsettled(refuse_overflow(estimate), self.layout.problem)


def _refuse_unsettled(estimate: Estimate, problem: Problem) -> Estimate:
    """An answer that is made of integrals which do not converge is none.

    Raises:
        ProblemError: Naming how many queries, and the first.
    """
    with torch.no_grad():
        unsettled = problem.preference.unsettled(estimate.dual)
    if unsettled is None or not bool(unsettled.any()):
        return estimate
    unsettled = unsettled.expand(problem.shape)
    where = tuple(int(i) for i in unsettled.nonzero()[0])
    raise ProblemError(
        f"the integrals of {problem.preference!r} do not converge for {int(unsettled.sum())} of {unsettled.numel()} "
        "queries "
        f"(first at index {where}): density or basis change too fast for these places. Make alpha or the evidence "
        "smaller, "
        "give breaks= where they jump or bend, or a larger accuracy="
    )


def refuse_gradients(problem: Problem) -> None:
    """An estimate without the gradient that its user counts on would train in silence on nothing."""
    wanted = problem.wants_gradients()
    if wanted:
        raise ProblemError(
            f"{' and '.join(wanted)} require gradients, which a solver that is called by itself does not carry: call "
            "problem.solve, solve under torch.no_grad(), or give detached tensors"
        )


CERTIFYING_ARRAYS = 6
"""Arrays of shape (rows, max(n, d)) that :func:`certify` keeps at once."""


def estimate_at(problem: Problem, dual: Tensor, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> Estimate:
    """The estimate that a dual point (..., m, d) gives, with its bounds.

    ``converged`` then says where λ is the solution to the rounding of the problem's dtype.
    """
    builder = EstimateBuilder(problem, tol=64 * torch.finfo(problem.dtype).eps)
    arranged = builder.layout.arrange(dual)
    for groups, rows, block in builder.layout.blocks(memory_budget, CERTIFYING_ARRAYS, itemsize=8):
        where = (groups[:, None], rows[None, :])
        builder.put(*where, certify(block.to(torch.float64), arranged[where].double(), problem.dtype))
    return builder.build()
