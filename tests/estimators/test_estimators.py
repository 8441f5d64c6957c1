"""Estimators against independent ones, at the edges, and in what they promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fenchel import (
    ConvergenceError,
    Discrete,
    Gaussian,
    GaussianMixture,
    InferenceProblem,
    ProblemError,
    Tsallis,
)
from fenchel.preference import Tilted
from fenchel.reliability import alpha_from_noise, noise_from_alpha
from tests.conformance.toys import Exponential
from tests.normal import drawn
from tests.problems import random_problem


def test_a_constraint_that_does_not_bind_leaves_the_preference() -> None:
    problem = random_problem(m=3, evidence=0.1)
    estimate = problem.solve("constrained", radius=5.0)
    torch.testing.assert_close(estimate.weights, problem.preference.weights().expand(3, -1))
    assert float(estimate.alpha.abs().max()) == 0
    # u is the solution, known but to rounding.
    assert 0 < float(estimate.mean_error.max()) < 1e-13
    assert float(estimate.dual_error.max()) == 0
    assert bool(estimate.converged.all())
    pair = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    with pytest.raises(ProblemError, match="the nearest mean there is 2 away"):
        InferenceProblem(pair, torch.tensor([[3.0]]).double()).solve("constrained", radius=1.5)


def test_noise_and_alpha_are_two_readings_of_one_number() -> None:
    """(27) with σ and η is (3) with α, up to the factor η."""
    problem = random_problem()
    sigma, eta = 0.7, 1.9
    alpha = alpha_from_noise(sigma, eta)
    assert noise_from_alpha(alpha, eta) == pytest.approx(sigma)
    p = problem.solve("first_order").weights
    shortfall = (problem.preference.mean() + problem.evidence - problem.mean(p)).square().sum(-1)
    likelihood = shortfall / (2 * sigma**2) + eta * problem.closeness.value(p, problem.preference.log_weights)
    penalty = InferenceProblem(problem.preference, problem.evidence, alpha).primal(p)
    torch.testing.assert_close(likelihood / eta, penalty)


def test_a_family_without_a_tilt_of_its_own_has_one() -> None:
    u = Exponential(torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64))
    found = InferenceProblem(u, 0.3 * drawn(2, 4, 3).abs()).solve("exact", tol=1e-9)
    inferred = found.distribution
    assert isinstance(inferred, Tilted)
    lam = 0.1 * found.dual
    torch.testing.assert_close(inferred.log_mgf(lam), u.log_mgf(found.dual + lam) - u.log_mgf(found.dual))
    with pytest.raises(ProblemError, match="the log density of Exponential is not known"):
        inferred.log_density(found.mean)
    with pytest.raises(ProblemError, match=r"a tilted Exponential cannot be sampled.*not override tilted"):
        inferred.sample()


EDGES = {
    "n much larger than d": {"n": 300, "d": 2},
    "d much larger than n": {"n": 3, "d": 200},
    "norm 1e-4": {"norm": 1e-4},
    "norm 1e4": {"norm": 1e4},
    "norm 1e4, small alpha": {"norm": 1e4, "alpha": 1e-3},
    "norm 1e-4, large alpha": {"norm": 1e-4, "alpha": 1e3},
    "log weights down to -80": {"spread": 30.0},
    "evidence far outside the templates": {"evidence": 100.0, "alpha": 10.0},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("edge", EDGES)
def test_converges_at_the_edges_as_certified(edge: str, dtype: torch.dtype) -> None:
    problem = random_problem(**EDGES[edge], dtype=dtype)
    estimate = problem.solve("exact", tol=1e-6)
    assert bool(estimate.converged.all())
    assert bool((estimate.dual_error <= 1e-6 * estimate.dual.norm(dim=-1)).all())


@pytest.mark.parametrize("closeness", [Tsallis(1.5), Tsallis(1.5, "csiszar"), Tsallis(2)], ids=repr)
def test_no_evidence_is_certified_whatever_rounding_leaves(closeness: Tsallis) -> None:
    templates, log_u = drawn(7, 4), drawn(64, 7, seed=1).log_softmax(-1)
    problem = InferenceProblem(Discrete(templates, log_u), templates.new_zeros(64, 4), closeness=closeness)
    estimate = problem.solve("exact", tol=1e-10)
    assert float(estimate.dual.abs().max()) == 0
    torch.testing.assert_close(estimate.weights, log_u.exp())


@pytest.mark.parametrize("size", [1e-145, 1e-155, 1e-170, 1e-250, 1e-290])
@pytest.mark.parametrize("closeness", [None, Tsallis(1.5), Tsallis(2)], ids=repr)
def test_evidence_whose_square_underflows_is_solved_like_any_other(
    size: float, closeness: Tsallis | None
) -> None:
    given = random_problem(m=3)
    problem = InferenceProblem(given.preference, given.evidence, given.alpha, closeness=closeness)
    # λ* is linear in evidence that is this small.
    linear = problem.solve("second_order").dual[1] * size
    length = float((linear / size).norm())
    z = problem.evidence.clone()
    z[1] *= size
    z[2] = 0
    faint = problem.with_evidence(z)
    for estimator in ("exact", "gradient_ascent", "first_order", "second_order"):
        options = {"throw": False, "tol": 1e-6} if estimator in ("exact", "gradient_ascent") else {}
        found = faint.solve(estimator, **options)
        apart = float(((found.dual[1] - linear) / size).norm())
        assert apart <= float(found.dual_error[1] / size) + 1e-10 * length
        assert bool((found.dual[2] == 0).all())
        assert float(found.gap[1]) > 0
        if estimator == "exact" and closeness is None:
            assert bool(found.converged.all())


def test_a_row_that_stops_early_says_so() -> None:
    problem = random_problem(m=6, alpha=50.0, evidence=4.0)
    for estimator in ("exact", "gradient_ascent"):
        stopped = problem.solve(estimator, tol=1e-12, max_steps=1, throw=False)
        assert not bool(stopped.converged.all())
        assert f"converged on {int(stopped.converged.sum())} of 6 queries" in repr(stopped)
        assert int(stopped.steps.max()) == 1
        with pytest.raises(
            ConvergenceError, match=r"of 6 queries did not reach dual_error <= 1e-12 .* raise"
        ):
            problem.solve(estimator, tol=1e-12, max_steps=1)


def test_float32_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ConvergenceError, match="give the problem in float64"):
        random_problem(dtype=torch.float32).solve("exact", tol=1e-10)
    far = InferenceProblem(GaussianMixture(torch.tensor([[-1e4], [1e4]]), 1e8), torch.full((1, 1), 3e4))
    remedies = {torch.float32: "rounding is the limit", torch.float64: "float64 cannot certify"}
    for dtype, remedy in remedies.items():
        with pytest.raises(ConvergenceError, match=f"raise tol: {remedy}"):  # float64 would not help
            far.to(dtype).solve("exact")


def test_what_float64_cannot_certify_is_not_claimed() -> None:
    """α‖t‖² = 1e11: the float64 rounding of λ alone moves the gradient by more than the certificate allows."""
    u, truth = Discrete(1e4 * drawn(30, 8)), 2e-4 * drawn(4, 8, seed=1)
    problem = InferenceProblem(u, truth / 1e3 + u.tilted_mean(truth) - u.mean(), 1e3)
    estimate = problem.solve("exact", tol=1e-9, throw=False)
    assert not bool(estimate.converged.all())
    missed = (estimate.dual - truth).norm(dim=-1)
    assert bool((missed <= estimate.dual_error).all())
    # Families that say how far rounding goes by squares have an allowance for those that underflow.
    u = Gaussian(torch.zeros(3, dtype=torch.float64), variance=2.0)
    faint = torch.full((1, 3), 1e-170, dtype=torch.float64)
    with pytest.raises(ConvergenceError, match="float64 cannot certify"):
        InferenceProblem(u, faint).solve("exact")


def test_second_order_refuses_a_covariance_that_is_not_finite() -> None:
    class Undefined(Exponential):
        def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda vector: vector * torch.nan

    problem = InferenceProblem(
        Undefined(torch.ones(2, dtype=torch.float64)), torch.full((1, 2), 0.1).double()
    )
    with pytest.raises(ProblemError, match="tilted_covariance of Undefined is not finite"):
        problem.solve("second_order")


def test_gradients_of_rows_that_conjugate_gradients_cannot_solve_are_factorised() -> None:
    """With eigenvalues over ten orders of magnitude, conjugate gradients are far from done where they stop."""
    spread = torch.logspace(0, 5, 30, dtype=torch.float64)
    u, z = Discrete(drawn(40, 30) * spread), (drawn(3, 30, seed=1) / spread).requires_grad_()
    dual = InferenceProblem(u, z, 1e-2).solve("second_order").dual
    (found,) = torch.autograd.grad(dual.sum(), z)
    matrix = 100 * torch.eye(30, dtype=torch.float64) + u.covariance()
    expected = torch.linalg.solve(matrix, torch.ones(30, 1, dtype=torch.float64)).squeeze(-1)
    assert float(((found - expected) * spread).norm() / (expected * spread).norm()) < 1e-5
