r"""The three readings of α: a likelihood, a posterior, and a radius.

The penalty form (3), the regularised likelihood (27) and the posterior of Appendix B are one problem with
:math:`\alpha^{-1} = \eta\sigma^2`. The constrained form has a radius instead; its α is the multiplier of the constraint
on half the squared distance, found by false position in log α; the radius for a given α follows from the exact
estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fenchel.errors import ConvergenceError, ProblemError
from fenchel.estimate import Estimate
from fenchel.preference import Discrete
from fenchel.problem import Problem
from fenchel.tensors import check_type, checked_argument, first_index, positive_tensor

__all__ = ["alpha_from_noise", "noise_from_alpha", "radius_of"]


def alpha_from_noise(sigma: float, eta: float = 1.0) -> float:
    r"""The α of evidence with Gaussian noise: :math:`\alpha = 1/(\eta\sigma^2)`.

    Args:
        sigma: Standard deviation σ of the noise ε in :math:`z = h - \mu + \epsilon` (2), > 0.
        eta: Strength η of the divergence: its weight in the regularised likelihood (27), its rate of decay in the
            prior (29), > 0.

    Raises:
        ProblemError: If either is not positive.

    Reference:
        Appendix B, eqs. (27)–(30).

    Example:
        >>> alpha_from_noise(sigma=0.5, eta=2.0)
        2.0
    """
    sigma = checked_argument("positive", sigma, name="sigma")
    eta = checked_argument("positive", eta, name="eta")
    return 1 / (eta * sigma**2)


def noise_from_alpha(alpha: float, eta: float = 1.0) -> float:
    r"""The standard deviation of the noise that corresponds to an α: :math:`\sigma = 1/\sqrt{\eta\alpha}`.

    Args:
        alpha: α > 0.
        eta: η > 0, as in :func:`alpha_from_noise`.

    Raises:
        ProblemError: If either is not positive.

    Example:
        >>> noise_from_alpha(2.0, eta=2.0)
        0.5
    """
    alpha = checked_argument("alpha", alpha)
    eta = checked_argument("positive", eta, name="eta")
    return (eta * alpha) ** -0.5


def radius_of(estimate: Estimate) -> Tensor:
    r"""The radius at which the constrained form has this exact estimate.

    .. math:: \lVert\mu + z - h^\star\rVert = \lVert\lambda^\star\rVert/\alpha

    Args:
        estimate: An exact estimate.

    Returns:
        The radius, shape (..., m); NaN if α is 0 (an inactive constraint). Its error is at most ``estimate.dual_error /
        alpha``.

    Example:
        >>> import torch
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.8]], dtype=torch.float64), alpha=2.0)
        >>> radius = radius_of(problem.solve("exact", tol=1e-10))
        >>> again = problem.solve("constrained", radius=radius)      # recovers alpha
        >>> torch.allclose(again.alpha, problem.alpha)
        True
    """
    check_type("estimate", estimate, Estimate, "a result of problem.solve")
    return estimate.dual.norm(dim=-1) / estimate.alpha


# α is searched within a factor e^±60 of its first guess; a radius not reached there is infeasible.
LARGEST_EXPONENT = 60.0

# Takes a problem, a tolerance and whether to raise if it is not met; returns the exact estimate.
Solve = Callable[[Problem, float, bool], Estimate]


def within_radius(
    problem: Problem,
    radius: float | Tensor,
    solve: Solve,
    tol: float,
    max_steps: int,
    throw: bool,
) -> Estimate:
    """The estimate at the α of each query at which its mean is at the radius, or u if its mean is within the radius.

    Args:
        problem: Its α is the first guess.
        radius: A number, or a tensor that broadcasts to (..., m).
        solve: Exact solver.
        tol: Relative tolerance on the distance, and on λ at the α found.
        max_steps: Maximum number of solves in the search.
        throw: Whether to raise if the tolerance is not met.
    """
    kind = problem.evidence.device, problem.dtype
    bound = positive_tensor("radius", radius, *kind, "that broadcasts to (..., m)", problem.shape)
    bound = bound.to(problem.dtype).expand(problem.shape).double()
    binding = problem.evidence.double().norm(dim=-1).expand(problem.shape) > bound
    # If the constraint is inactive, the solution is u, as without evidence.
    problem = problem.with_evidence(torch.where(binding.unsqueeze(-1), problem.evidence, 0))
    guess = problem.alpha.expand(problem.shape).double().log()
    of_search = max(0.1 * tol, 64 * torch.finfo(problem.dtype).eps)

    def distance(estimate: Estimate, alpha: Tensor) -> Tensor:
        return estimate.dual.double().norm(dim=-1) / alpha

    def excess(log_alpha: Tensor) -> Tensor:
        alpha = log_alpha.exp()
        result = solve(problem._with_alpha(alpha), of_search, False)
        return (distance(result, alpha) / bound).log()

    alpha = _root(problem, excess, guess, binding, bound, tol, max_steps).exp()
    estimate = solve(problem._with_alpha(alpha), tol, throw)
    off = (distance(estimate, alpha) - bound).abs()
    missed = binding & ~(off <= tol * bound + estimate.dual_error.double() / alpha)
    if throw and bool(missed.any()):
        raise ConvergenceError(
            f"{int(missed.sum())} of {missed.numel()} queries did not reach their radius (worst off by "
            f"{float((off / bound)[missed].max()):.1e} of it after {max_steps} steps). Raise max_steps or tol, or pass "
            "throw=False and check estimate.converged"
        )
    alpha = alpha.masked_fill(~binding, 0).to(problem.dtype)
    return replace(estimate, alpha=alpha, converged=estimate.converged & ~missed)


def _root(
    problem: Problem,
    excess: Callable[[Tensor], Tensor],
    start: Tensor,
    binding: Tensor,
    radius: Tensor,
    tol: float,
    max_steps: int,
) -> Tensor:
    """The log α at which the excess, the log of the distance over the radius, is 0; it is positive at smaller α."""
    first = excess(start)
    low, high, f_low, f_high, reach = start, start, first, first, 1.0
    while True:
        left, right = (f_low <= 0) & binding, (f_high > 0) & binding
        if reach > LARGEST_EXPONENT and bool(right.any()):
            where = first_index(right)
            finite = isinstance(problem.preference, Discrete)
            support = "the templates" if finite else "the support of the preference"
            raise ProblemError(
                f"no distribution on {support} has its mean within the radius of mu + z for {int(right.sum())} of "
                f"{right.numel()} queries (first at index {where}): the nearest mean there is "
                f"{float((f_high.exp() * radius)[where]):.4g} away; give a larger radius"
            )
        if reach > 4 * LARGEST_EXPONENT or not bool((left | right).any()):
            break
        tried = torch.where(left, start - reach, torch.where(right, start + reach, start))
        value, reach = excess(tried), 2 * reach
        low, f_low = torch.where(left, tried, low), torch.where(left, value, f_low)
        high, f_high = torch.where(right, tried, high), torch.where(right, value, f_high)
    trial = torch.where(f_low.abs() < f_high.abs(), low, high)
    for step in range(max_steps):
        secant = low + (high - low) * f_low / (f_low - f_high)
        middle = (low + high) / 2
        secant = secant.where(torch.isfinite(secant), middle)
        trial = torch.where(binding, secant if step % 3 != 2 else middle, start)
        value = excess(trial)
        if bool(((value.abs() <= 0.5 * tol) | ~binding).all()):
            break
        above = value > 0
        # The Illinois method: halving the value kept at the other end avoids slow convergence of false position.
        f_high = torch.where(above, f_high / 2, value)
        f_low = torch.where(above, value, f_low / 2)
        low, high = torch.where(above, trial, low), torch.where(above, high, trial)
    return trial
