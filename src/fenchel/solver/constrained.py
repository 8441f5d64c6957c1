r"""The maximum-entropy-on-the-mean form: the closest p to u whose mean is within a radius of μ + z."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fenchel.arguments.tensor import broadcasts_to, checked_argument, positive_tensor
from fenchel.conjugate import FiniteConjugate
from fenchel.errors import ConvergenceError, ProblemError
from fenchel.estimate import BOUNDS, Estimate, estimate_at
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.problem import Problem
from fenchel.solver.exact import check_call, check_curved, check_iterations, exact

__all__ = ["constrained"]

LARGEST_EXPONENT = 60.0
"""α is sought within a factor e^±60 of its first guess; a radius not reached by then is out of reach."""


def constrained(
    problem: Problem,
    *,
    radius: float | Tensor,
    tol: float = 1e-6,
    max_steps: int = 100,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    r"""Solve :math:`\min_p D(p, u)` subject to :math:`\lVert\mu + z - \mathbb{E}_p[t]\rVert \le \text{radius}`.

    The solution is the exact estimate at one α a query, the multiplier of the constraint on half the squared distance.
    The distance :math:`\lVert\mu + z - h^\star(\alpha)\rVert = \lVert\lambda^\star(\alpha)\rVert/\alpha` falls with
    α wherever the templates spread along λ*, so that α is the root of a monotone function, bracketed and found by
    safeguarded false position in log α. It is not the α of the penalty form with :math:`\text{radius}^2 = 1/(2\alpha)`
    in general: the two agree at no α, at one or at several, by problem.

    Where ‖z‖ ≤ radius the preference itself is feasible: then p is the
    distribution nearest u (u itself for KL), λ = 0 and α = 0.

    Args:
        problem: Preference and evidence; its α is only the first guess.
        radius: Largest distance of the mean from μ + z, > 0: a number, or a tensor that broadcasts to (..., m).
        tol: Relative tolerance on λ at the α found, and on the distance against the radius.
        max_steps: Root-finding steps, each an exact solve.
        throw: Raise where the tolerance is not met.
        memory_budget: Bytes of working memory.

    Returns:
        The estimate; ``estimate.alpha`` (..., m) is the α found, and the bounds refer to the penalty problem at that α.

    Raises:
        ProblemError: If a radius is not positive, or is smaller than the distance from μ + z to the convex hull of the
            templates, so that no p is feasible.
        ConvergenceError: If the root or a solve does not meet the tolerance and ``throw`` is true.

    Reference:
        Section 4, "A Maximum Entropy on the Mean Perspective".

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.8]], dtype=torch.float64))
        >>> estimate = constrained(problem, radius=0.3, tol=1e-10)
        >>> estimate.mean, estimate.alpha               # 0.8 - 0.3; atanh(0.5) / 0.3
        (tensor([[0.5000]], dtype=torch.float64), tensor([1.8310], dtype=torch.float64))
    """
    check_call(problem, memory_budget)
    check_curved(problem, "constrained")
    check_iterations(tol, max_steps, throw)
    bound = _checked_radius(radius, problem)
    shift = problem.evidence.double().norm(dim=-1).expand(problem.shape)
    binding = shift > bound
    guess = problem.alpha.expand(problem.shape).double()
    search = _Search(problem, bound, 0.1 * tol, memory_budget)
    log_alpha = search.root(guess.log(), binding, tol, max_steps)
    alpha = log_alpha.exp()
    estimate = exact(
        problem.with_alpha(alpha),
        tol=tol,
        max_steps=search.newton_steps,
        throw=throw,
        memory_budget=memory_budget,
    )
    distance = estimate.dual.double().norm(dim=-1) / alpha
    reached = (distance - bound).abs() <= tol * bound + estimate.dual_error.double() / alpha
    if throw and not bool((reached | ~binding).all()):
        missed = binding & ~reached
        worst = float(((distance - bound).abs() / bound)[missed].max())
        raise ConvergenceError(
            f"{int(missed.sum())} of {missed.numel()} queries did not reach their radius (worst off by {worst:.1e} of "
            f"it after {max_steps} steps). Raise max_steps or tol, or pass throw=False and read estimate.converged"
        )
    estimate = replace(
        estimate,
        alpha=alpha.masked_fill(~binding, 0).to(problem.dtype),
        converged=estimate.converged & reached,
    )
    return estimate if bool(binding.all()) else _with_preference(problem, estimate, ~binding, memory_budget)


def _checked_radius(radius: float | Tensor, problem: Problem) -> Tensor:
    dtype, device = problem.dtype, problem.evidence.device
    if not isinstance(radius, Tensor):
        bound = torch.tensor(checked_argument("radius", radius), dtype=dtype, device=device)
    else:
        bound = positive_tensor("radius", radius, device, dtype, "that broadcasts to (..., m)").to(dtype)
    if not broadcasts_to(bound.shape, problem.shape):
        raise ProblemError(
            f"radius has shape {tuple(bound.shape)}; expected one that broadcasts to (..., m) = {tuple(problem.shape)}"
        )
    return bound.expand(problem.shape).double()


def _with_preference(problem: Problem, estimate: Estimate, idle: Tensor, memory_budget: int) -> Estimate:
    """Put p = u where the constraint does not bind: there λ = 0 is the solution, and rounding all that is left."""
    silent = problem.with_evidence(torch.zeros_like(problem.evidence))
    at_zero = estimate_at(silent, torch.zeros_like(estimate.dual), memory_budget)
    row = idle.unsqueeze(-1)
    weights = None if at_zero.inferred is None else torch.where(row, at_zero.inferred, estimate.weights)
    return replace(
        estimate,
        mean=torch.where(row, at_zero.mean, estimate.mean),
        inferred=weights,
        dual=torch.where(row, at_zero.dual, estimate.dual),
        **{name: torch.where(idle, getattr(at_zero, name), getattr(estimate, name)) for name in BOUNDS},
        converged=estimate.converged | idle,
    )


class _Search:
    """Root of log(distance / radius) in log α, every query at once."""

    newton_steps = 100

    def __init__(self, problem: Problem, radius: Tensor, tol: float, memory_budget: int) -> None:
        self._problem, self._radius, self._tol, self._budget = problem, radius, tol, memory_budget

    def excess(self, log_alpha: Tensor) -> Tensor:
        """Log of the distance over the radius: positive where α is too small."""
        alpha = log_alpha.exp()
        estimate = exact(
            self._problem.with_alpha(alpha),
            tol=max(self._tol, 64 * torch.finfo(self._problem.dtype).eps),
            max_steps=self.newton_steps,
            throw=False,
            memory_budget=self._budget,
        )
        return (estimate.dual.double().norm(dim=-1) / alpha / self._radius).log()

    def root(self, start: Tensor, binding: Tensor, tol: float, max_steps: int) -> Tensor:
        low, high, f_low, f_high = self._bracket(start, binding)
        best = torch.where(f_low.abs() < f_high.abs(), low, high)
        for step in range(max_steps):
            secant = low + (high - low) * f_low / (f_low - f_high)
            middle = (low + high) / 2
            secant = secant.where(torch.isfinite(secant), middle)
            trial = torch.where(binding, secant if step % 3 != 2 else middle, start)
            value = self.excess(trial)
            best = trial
            if bool(((value.abs() <= 0.5 * tol) | ~binding).all()):
                break
            above = value > 0
            # Illinois: halving the value kept at the other end keeps false position from creeping.
            f_high = torch.where(above, f_high / 2, value)
            f_low = torch.where(above, value, f_low / 2)
            low, high = torch.where(above, trial, low), torch.where(above, high, trial)
        return best

    def _bracket(self, start: Tensor, binding: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        f_start = self.excess(start)
        low, high, f_low, f_high = start.clone(), start.clone(), f_start.clone(), f_start.clone()
        reach = 1.0
        while bool(((f_low <= 0) & binding).any()) and reach <= 4 * LARGEST_EXPONENT:
            low = torch.where(f_low <= 0, start - reach, low)
            f_low = self.excess(low)
            reach *= 2
        reach = 1.0
        while bool(((f_high > 0) & binding).any()):
            if reach > LARGEST_EXPONENT:
                missing = (f_high > 0) & binding
                first = tuple(int(i) for i in missing.nonzero()[0])
                distance = float((f_high.exp() * self._radius)[first])
                finite = isinstance(self._problem.conjugate, FiniteConjugate)
                support = "the templates" if finite else "the support of the preference"
                raise ProblemError(
                    f"no distribution on {support} has its mean within the radius of mu + z for "
                    f"{int(missing.sum())} of {missing.numel()} queries (first at index {first}): the nearest "
                    f"mean there is {distance:.4g} away; give a larger radius"
                )
            high = torch.where(f_high > 0, start + reach, high)
            f_high = self.excess(high)
            reach *= 2
        return low, high, f_low, f_high
