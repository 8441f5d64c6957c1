r"""The estimators that iterate: to the maximiser λ* of the dual, certified in float64, or to the α of a radius.

Why the exact one converges, what its certificate guarantees and what it costs: ``docs/exact-solver.md``. Gradient
ascent is the papers' own way, kept as the baseline to measure against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fenchel.conjugate import FiniteConjugate
from fenchel.errors import ConvergenceError, ProblemError
from fenchel.estimate import BOUNDS, Certificate, Estimate, certify, estimate_at, estimate_of
from fenchel.family import Block
from fenchel.problem import DEFAULT_MEMORY_BUDGET, Problem
from fenchel.solver.driver import infer
from fenchel.tensors import (
    broadcasts_to,
    check_flags,
    checked_argument,
    norm,
    positive_tensor,
    reference_norm,
)

__all__ = [
    "WORKING_ARRAYS",
    "check_call",
    "check_convergence",
    "check_curved",
    "check_iterations",
    "constrained",
    "exact",
    "gradient_ascent",
    "solved_block",
]


def check_call(problem: Any, memory_budget: Any) -> None:
    """The problem and the options of a solver.

    Args:
        problem: What to solve.
        memory_budget: Bytes of working memory.

    Raises:
        ProblemError: Naming the first that cannot be used.
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem is a {type(problem).__name__}; expected a fenchel.InferenceProblem")
    checked_argument("memory_budget", memory_budget)


def check_curved(problem: Problem, estimator: str) -> None:
    """Refuse a closeness whose weights jump, where steps or an expansion are made of their derivative.

    Raises:
        ProblemError: Naming the estimator.
    """
    if not problem.closeness.curved:
        raise ProblemError(
            f"closeness is {problem.closeness!r}, whose weights jump, so that there is no {estimator!r} estimate; "
            "expected the estimator 'first_order', or a closeness with a small temperature, such as "
            "fenchel.Tsallis(2, temperature=0.01)"
        )


def check_iterations(tol: Any, max_steps: Any, throw: Any) -> None:
    """When an iterative solver stops, and whether it raises then.

    Args:
        tol: Relative tolerance.
        max_steps: Steps that a query may take.
        throw: Whether to raise where the tolerance is not met.

    Raises:
        ProblemError: Naming the first that cannot be used.
    """
    checked_argument("tol", tol)
    checked_argument("solver_steps", max_steps, name="max_steps")
    check_flags(throw=throw)


WORKING_ARRAYS = 24
"""Arrays of shape (rows, max(n, d)) alive at once in a Newton step, counted in the block's own dtype."""

MARGIN = 0.7
"""The driver aims at this part of the tolerance: its certificate and that of an estimate are two evaluations."""


def exact(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_steps: int = 50,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    r"""Maximise the dual (7) to a certified relative accuracy.

    .. math:: \lambda^\star = \arg\max_\lambda \mathcal{D}(\lambda), \qquad
              \lVert\lambda - \lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert
              \le \mathtt{tol}\cdot\lVert\lambda\rVert

    Mixing and Newton's method run in the problem's dtype; queries for which rounding leaves too little of the tolerance
    are solved on in float64, and all are certified there.

    Args:
        problem: What to solve.
        tol: Relative tolerance on λ, > 0. Where λ is zero to rounding, it is relative to ‖αz‖.
        max_steps: Steps a query may take.
        throw: Raise where the tolerance is not met; otherwise see ``estimate.converged``.
        memory_budget: Bytes of working memory besides input and result; queries are solved in blocks that fit.

    Returns:
        The estimate, whose bounds come from the problem and λ alone.

    Raises:
        ProblemError: On a tolerance, step limit or closeness that cannot be used.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Theorem 1, eqs. (7)–(10); Appendix D, eqs. (35) and (36).

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64))
        >>> estimate = exact(InferenceProblem(u, torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)), tol=1e-10)
        >>> bool(estimate.dual_error <= 1e-10 * estimate.dual.norm())
        True
    """
    check_call(problem, memory_budget)
    check_curved(problem, "exact")
    return _iterated(problem, tol, max_steps, throw, memory_budget, solved_block)


def _iterated(
    problem: Problem,
    tol: float,
    max_steps: int,
    throw: bool,
    memory_budget: int,
    solve: Callable[[Block, torch.dtype, float, int], tuple[Certificate, Tensor]],
) -> Estimate:
    """The estimate of what ``solve`` finds for every block."""
    check_iterations(tol, max_steps, throw)

    def of_block(block: Block) -> tuple[Certificate, Tensor]:
        return solve(block, problem.dtype, tol, max_steps)

    estimate = estimate_of(problem, tol, of_block, memory_budget, WORKING_ARRAYS, itemsize=None)
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


def solved_block(block: Block, dtype: torch.dtype, tol: float, max_steps: int) -> tuple[Certificate, Tensor]:
    """The dual points of a block, certified in float64, and the steps that each row took, int64 (g, r).

    Args:
        block: The rows, in the problem's dtype.
        dtype: To which results are rounded.
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take.
    """
    found = infer(block, tol=MARGIN * tol, max_steps=max_steps)
    return certify(block.to(torch.float64), found.dual.double(), dtype), found.steps


def check_convergence(estimate: Estimate, tol: float, max_steps: int) -> None:
    """Raise if some query does not meet the tolerance, naming how many, the worst and what to do."""
    missed = ~estimate.converged
    if not bool(missed.any()):
        return
    relative = estimate.dual_error.double() / norm(estimate.dual.double()).squeeze(-1)
    relative = relative.nan_to_num(nan=torch.inf).masked_fill(~missed, -torch.inf)
    flat = int(relative.argmax())
    worst = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat, device="cpu"), relative.shape))
    steps = int(estimate.steps.flatten()[flat])
    if steps >= max_steps:
        remedy = "raise max_steps, or tol where more steps change nothing (rounding is then the limit)"
    elif estimate.dual.dtype == torch.float32:
        remedy = "raise tol, or give the problem in float64"
    else:
        remedy = "raise tol: float64 cannot certify more on this problem"
    raise ConvergenceError(
        f"{int(missed.sum())} of {missed.numel()} queries did not reach dual_error <= {tol:g} ||dual|| (worst at index "
        f"{worst}: {float(relative.flatten()[flat]):.2e} after {steps} steps). To go on, {remedy}; or pass throw=False "
        "and read estimate.converged"
    )


def gradient_ascent(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_steps: int = 10_000,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    r"""Climb the dual from αz along its gradient, with a step that doubles on success and halves on failure.

    .. math:: \lambda \leftarrow \lambda + \eta\,\nabla\mathcal{D}(\lambda)

    A step is kept where the gradient gets shorter. The first and smallest η is one over a bound on the Hessian, with
    which it always does: :math:`1 / (\alpha^{-1} + \max_i\lVert t_i - \bar t\rVert^2/\sigma)` where there are
    templates. A preference that has no such bound begins with η = α, and no step is smallest.

    Args:
        problem: What to solve.
        tol: Relative tolerance on λ, certified as in :func:`~fenchel.solver.exact`.
        max_steps: Steps a query may take.
        throw: Raise where the tolerance is not met.
        memory_budget: Bytes of working memory.

    Returns:
        The estimate with its bounds.

    Raises:
        ProblemError: If the tolerance is not positive.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Section 8: "performing gradient ascent".

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(2, dtype=torch.float64))
        >>> slow = gradient_ascent(InferenceProblem(u, torch.tensor([[1.0, 0.0]], dtype=torch.float64)))
        >>> bool(slow.converged.all())
        True
    """
    check_call(problem, memory_budget)
    check_curved(problem, "gradient_ascent")
    return _iterated(problem, tol, max_steps, throw, memory_budget, _ascended)


def _ascended(block: Block, dtype: torch.dtype, tol: float, max_steps: int) -> tuple[Certificate, Tensor]:
    """What :func:`solved_block` gives, by gradient ascent."""
    family, alpha = block.family, block.alpha.expand(*block.evidence.shape[:-1], 1)
    bound, first = block.family.smoothness(), alpha * block.evidence
    least = torch.zeros_like(alpha) if bound is None else (1 / (1 / alpha + bound)).expand_as(alpha)
    step = alpha if bound is None else least
    dual = family.start(first, block.evidence)
    steps = torch.zeros(alpha.shape[:-1], dtype=torch.int64, device=alpha.device)

    def slope(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient = block.evidence - at / alpha - family.at(at).shift
        size = norm(gradient)
        reference = reference_norm(norm(at), norm(first))
        return gradient, size, alpha * size > MARGIN * tol * reference

    gradient, size, going = slope(dual)
    while bool(going.any()) and int(steps.max()) < max_steps:
        tried = dual + step * gradient
        new_gradient, new_size, new_going = slope(tried)
        kept = ((new_size < size) | (step <= least)) & going
        step = torch.where(kept, 2 * step, torch.where(going, torch.maximum(step / 2, least), step))
        steps += going.squeeze(-1)
        dual, gradient = torch.where(kept, tried, dual), torch.where(kept, new_gradient, gradient)
        size, going = torch.where(kept, new_size, size), torch.where(kept, new_going, going)
    return certify(block.to(torch.float64), dual.double(), dtype), steps


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
