"""Preferences with independent coordinates: against quadrature, sampling, scipy, and at extremes against 50 digits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from scipy import stats
from torch import Tensor

from fenchel import Bernoulli, Box, DomainError, Gamma, InferenceProblem, Laplace, Poisson
from fenchel.preference import AsymmetricLaplace, TruncatedExponential
from fenchel.preference.independent import AbstractProduct
from tests.normal import drawn

M, D = 4, 3
stat: Any = stats


def positive(*shape: int, seed: int = 1) -> Tensor:
    return drawn(*shape, seed=seed).abs() + 0.5


@dataclass(frozen=True)
class Case:
    """A family, its parameters, what scipy calls a tilted coordinate of it, and its support."""

    make: Callable[..., AbstractProduct]
    parameters: dict[str, Tensor]
    scipy: Callable[..., Any]
    support: Callable[..., tuple[float, float]] | None = None
    counts: int = 0

    def built(self, **changed: Tensor) -> AbstractProduct:
        return self.make(**{**self.parameters, **changed})


def _sided(location: float, left: float, right: float) -> Any:
    # scipy's density is in proportion to exp(-|x| κ/s) to the right and exp(-|x|/(κs)) to the left.
    kappa = math.sqrt(right / left)
    return stat.laplace_asymmetric(kappa, loc=location, scale=1 / math.sqrt(left * right))


def _between(low: float, high: float, theta: float) -> Any:
    if abs(theta) < 1e-9:
        return stat.uniform(low, high - low)
    # scipy's falls from 0 on: mirrored where it rises.
    shape = stat.truncexpon((high - low) * abs(theta), scale=1 / abs(theta))

    class Mirrored:
        def logpdf(self, x: float) -> float:
            return shape.logpdf(high - x if theta > 0 else x - low)

        def mean(self) -> float:
            return high - shape.mean() if theta > 0 else low + shape.mean()

        def var(self) -> float:
            return shape.var()

    return Mirrored()


CASES = {
    "Bernoulli": Case(
        Bernoulli,
        {"probs": torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)},
        lambda lam, probs: stat.bernoulli(1 / (1 + (1 / probs - 1) * math.exp(-lam))),
        counts=2,
    ),
    "Poisson": Case(
        Poisson, {"rate": positive(M, D)}, lambda lam, rate: stat.poisson(rate * math.exp(lam)), counts=120
    ),
    "Gamma": Case(
        Gamma,
        {"concentration": positive(D), "rate": positive(M, D, seed=2) + 1},
        lambda lam, concentration, rate: stat.gamma(concentration, scale=1 / (rate - lam)),
        lambda **_: (0.0, math.inf),
    ),
    "Laplace": Case(
        Laplace,
        {"location": drawn(M, D), "scale": positive(D) / 3},
        lambda lam, location, scale: _sided(location, 1 / scale + lam, 1 / scale - lam),
        lambda **_: (-math.inf, math.inf),
    ),
    "AsymmetricLaplace": Case(
        AsymmetricLaplace,
        {"location": drawn(D), "left": positive(D) + 1, "right": positive(M, D, seed=3) + 2},
        lambda lam, location, left, right: _sided(location, left + lam, right - lam),
        lambda **_: (-math.inf, math.inf),
    ),
    "Box": Case(
        Box,
        {"low": drawn(D), "high": drawn(D) + positive(M, D)},
        lambda lam, low, high: _between(low, high, lam),
        lambda low, high: (low, high),
    ),
    "TruncatedExponential": Case(
        TruncatedExponential,
        {"low": drawn(D), "high": drawn(D) + positive(D), "theta": drawn(M, D, seed=4)},
        lambda lam, low, high, theta: _between(low, high, theta + lam),
        lambda low, high, theta: (low, high),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def inside(u: AbstractProduct, seed: int = 5) -> Tensor:
    lam = drawn(M, D, seed=seed)
    reach = u.reach(torch.zeros_like(lam), lam)
    return lam if reach is None else lam * (0.6 * reach).clamp(max=1).unsqueeze(-1)


def coordinates(case: Case) -> list[tuple[int, int, dict[str, float]]]:
    """Every coordinate of every query, with its parameters as numbers."""
    wide = {name: part.expand(M, D) for name, part in case.parameters.items()}
    return [
        (i, j, {name: float(part[i, j]) for name, part in wide.items()}) for i in range(M) for j in range(D)
    ]


@every_case
def test_the_tilt_is_what_scipy_says(name: str) -> None:
    case = CASES[name]
    u = case.built()
    lam = inside(u)
    tilted = u.tilted(lam)
    variance = tilted.covariance_product(torch.ones(M, D, dtype=torch.float64))
    for at in (0.0, 1.0, 0.4, 3.0):
        points = torch.full((M, D), at, dtype=torch.float64)
        densities = tilted.log_densities(points)  # pyright: ignore[reportAttributeAccessIssue]
        for i, j, numbers in coordinates(case):
            expected = case.scipy(float(lam[i, j]), **numbers)
            assert float(tilted.mean()[i, j]) == pytest.approx(float(expected.mean()), rel=1e-7)
            assert float(variance[i, j]) == pytest.approx(float(expected.var()), rel=1e-6)
            log = expected.logpmf(at) if case.counts else expected.logpdf(at)
            assert float(densities[i, j]) == pytest.approx(float(log), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(tilted.log_density(points), densities.sum(-1))


@pytest.mark.parametrize("name", ["Gamma", "Laplace", "AsymmetricLaplace"])
@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_what_leaves_the_domain_says_which_alpha_would_not(name: str, estimator: str) -> None:
    u = CASES[name].built()
    z = drawn(2, M, D, seed=9).abs()
    alpha = torch.full((2, M), 0.05, dtype=torch.float64)
    alpha[1, 2] = 1e4
    for memory in (2**29, 1):
        with pytest.raises(DomainError) as caught:
            InferenceProblem(u, z, alpha).solve(estimator, memory_budget=memory)
        error = caught.value
        assert error.query == (1, 2)
        assert "1 of 8 queries" in str(error)
        assert f"{name} preference" in str(error)
        assert "index (1, 2), where alpha is 10000 and the largest admissible alpha" in str(error)
        assert error.largest_alpha is not None
        assert f"{error.largest_alpha:.6g}" in str(error)
        alpha_fits, alpha_fails = alpha.clone(), alpha.clone()
        alpha_fits[1, 2], alpha_fails[1, 2] = error.largest_alpha, error.largest_alpha * (1 + 3e-5)
        assert bool(torch.isfinite(InferenceProblem(u, z, alpha_fits).solve(estimator).mean).all())
        with pytest.raises(DomainError):
            InferenceProblem(u, z, alpha_fails).solve(estimator)
    assert bool(InferenceProblem(u, z, alpha).solve("exact").converged.all())
    assert bool(
        InferenceProblem(u, z, alpha).solve("gradient_ascent", tol=1e-3, throw=False).gap.isfinite().all()
    )


def test_counts_that_overflow_are_outside() -> None:
    u = Poisson(torch.ones(1))
    with pytest.raises(DomainError, match=r"infinite or overflows .* largest admissible alpha 4\d"):
        InferenceProblem(u, torch.ones(1, 1), alpha=90.0).solve("first_order")
    found = InferenceProblem(u, torch.full((1, 1), 1e6), alpha=90.0).solve("exact", tol=1e-4)
    assert float(found.mean) == pytest.approx(1e6, rel=1e-3)


@pytest.mark.parametrize(("rate", "z", "alpha"), [(1e-200, 5, 100), (1e-300, 1e3, 1e3), (1e-30, 1e-3, 1e6)])
def test_a_tiny_rate_has_an_answer_far_out(rate: float, z: float, alpha: float) -> None:
    """Where λ is hundreds, and its exponential need not be finite."""
    u = Poisson(torch.tensor([rate], dtype=torch.float64))
    problem = InferenceProblem(u, torch.tensor([[z]], dtype=torch.float64), alpha)
    found = problem.solve("exact", tol=1e-9)
    mp.dps = 40
    lam, best = mpf(float(found.dual)), mpf(float(found.dual) - float(found.dual_error))
    # The gradient falls: it is above 0 before the maximum and below 0 after it.
    for end, rises in ((best, True), (2 * lam - best, False)):
        assert (mpf(z) - mpf(rate) * mp.expm1(end) - end / alpha > 0) == rises
    assert float(found.distribution.mean()) == pytest.approx(float(found.mean))
    assert float(found.mean) == pytest.approx(float(mpf(rate) * mp.exp(lam)), rel=1e-12)
    with pytest.raises(DomainError, match="largest admissible alpha"):
        InferenceProblem(u, torch.tensor([[z]], dtype=torch.float64), 1e7).solve("first_order")
