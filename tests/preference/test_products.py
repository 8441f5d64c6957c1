"""Preferences with independent coordinates: where their cumulants end, and answers far out against 40 digits."""

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from fenchel import DomainError, Gamma, InferenceProblem, Laplace, Poisson
from fenchel.preference import AsymmetricLaplace
from fenchel.preference.independent import AbstractProduct
from tests.normal import drawn

M, D = 4, 3


def positive(*shape: int, seed: int = 1) -> Tensor:
    return drawn(*shape, seed=seed).abs() + 0.5


BOUNDED = [
    Gamma(positive(D), positive(M, D, seed=2) + 1),
    Laplace(drawn(M, D), positive(D) / 3),
    AsymmetricLaplace(drawn(D), positive(D) + 1, positive(M, D, seed=3) + 2),
]


@pytest.mark.parametrize("u", BOUNDED, ids=lambda u: type(u).__name__)
@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_what_leaves_the_domain_says_which_alpha_would_not(u: AbstractProduct, estimator: str) -> None:
    z = drawn(2, M, D, seed=9).abs()
    alpha = torch.full((2, M), 0.05, dtype=torch.float64)
    alpha[1, 2] = 1e4
    for memory in (2**29, 1):
        with pytest.raises(DomainError) as caught:
            InferenceProblem(u, z, alpha).solve(estimator, memory_budget=memory)
        error = caught.value
        assert error.query == (1, 2)
        assert f"of 1 of 8 queries where log M of the {type(u).__name__} preference is infinite" in str(error)
        assert error.largest_alpha is not None
        assert f"alpha is 10000 and the largest admissible alpha {error.largest_alpha:.6g}" in str(error)
        fits, fails = alpha.clone(), alpha.clone()
        fits[1, 2], fails[1, 2] = error.largest_alpha, error.largest_alpha * (1 + 3e-5)
        assert bool(InferenceProblem(u, z, fits).solve(estimator).mean.isfinite().all())
        with pytest.raises(DomainError):
            InferenceProblem(u, z, fails).solve(estimator)
    problem = InferenceProblem(u, z, alpha)
    assert bool(problem.solve("exact").converged.all())
    assert bool(problem.solve("gradient_ascent", tol=1e-3, throw=False).gap.isfinite().all())


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
