"""First order, second order, gradient ascent and the constrained form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fenchel import ConvergenceError, Discrete, InferenceProblem, ProblemError
from fenchel.reliability import alpha_from_noise, noise_from_alpha, radius_of
from fenchel.solver import constrained, exact, first_order, gradient_ascent, second_order
from tests.problems import random_problem, rows_of


def test_first_order_is_attention() -> None:
    """With uniform u, t = k/√d and α = 1: scaled dot-product attention."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, length, 8, dtype=torch.float64, generator=generator) for length in (5, 7))
    estimate = first_order(InferenceProblem(Discrete(k / 8**0.5), q))
    attention = torch.nn.functional.scaled_dot_product_attention(q, k, k)
    torch.testing.assert_close(estimate.mean * 8**0.5, attention)


def test_first_order_with_a_bias_is_t5() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(5, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    bias = torch.randn(5, 5, dtype=torch.float64, generator=generator)
    estimate = first_order(InferenceProblem(Discrete(k, bias), q))
    torch.testing.assert_close(estimate.weights, (q @ k.T + bias).softmax(-1))


@pytest.mark.parametrize("per_query", [False, True])
@pytest.mark.parametrize(("n", "d"), [(12, 5), (4, 9)])
def test_second_order_is_its_formula(n: int, d: int, per_query: bool) -> None:
    problem = random_problem(n=n, d=d, batch=(2,), alpha=2.0, masked=1, per_query=per_query)
    sigma = problem.preference.covariance()
    matrix = torch.eye(d, dtype=torch.float64) + 2.0 * sigma
    expected = 2.0 * torch.linalg.solve(matrix, problem.evidence.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(second_order(problem).dual, expected)


def test_second_order_with_one_preference_and_many_alphas() -> None:
    base = random_problem(m=3)
    alpha = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    together = second_order(InferenceProblem(base.preference, base.evidence, alpha))
    for k in range(3):
        alone = second_order(InferenceProblem(base.preference, base.evidence[k : k + 1], float(alpha[k])))
        torch.testing.assert_close(together.dual[k], alone.dual[0])


def test_second_order_is_exact_in_the_limit_of_a_gaussian_preference() -> None:
    """Templates that tile a line with Gaussian weights stand for N(μ, σ²), for which the expansion (12) is exact."""
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None]
    u = Discrete(grid, -(grid[:, 0] - 0.3).square() / (2 * 1.5**2))
    problem = InferenceProblem(u, torch.tensor([[0.8]], dtype=torch.float64), 0.9)
    torch.testing.assert_close(
        second_order(problem).dual, exact(problem, tol=1e-12).dual, rtol=1e-9, atol=1e-9
    )
    # and the formula of section 5, with Σ = σ²
    torch.testing.assert_close(
        second_order(problem).dual, torch.tensor([[0.9 * 0.8 / (1 + 0.9 * 1.5**2)]]).double()
    )


def test_gradient_ascent_reaches_the_exact_solution() -> None:
    problem = random_problem(batch=(2,), alpha=3.0, masked=2)
    slow, quick = gradient_ascent(problem, tol=1e-8), exact(problem, tol=1e-10)
    torch.testing.assert_close(slow.weights, quick.weights, rtol=1e-5, atol=1e-8)
    assert int(slow.steps.max()) > 5 * int(quick.steps.max())


def test_gradient_ascent_says_where_it_did_not_arrive() -> None:
    problem = random_problem(alpha=20.0, norm=3.0)
    with pytest.raises(ConvergenceError, match="queries did not reach dual_error <= 1e-10"):
        gradient_ascent(problem, tol=1e-10, max_steps=5)
    stopped = gradient_ascent(problem, tol=1e-10, max_steps=5, throw=False)
    assert not bool(stopped.converged.all())


def constrained_by_scipy(t: np.ndarray, u: np.ndarray, z: np.ndarray, radius: float) -> np.ndarray:
    """p of the constrained form by sequential quadratic programming."""
    target = u @ t + z
    found = minimize(
        lambda p: float((p * np.log(np.maximum(p, 1e-300) / u)).sum()),
        u,
        jac=lambda p: np.log(np.maximum(p, 1e-300) / u) + 1,
        bounds=[(1e-12, 1)] * len(u),
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones_like(p)},
            {
                "type": "ineq",
                "fun": lambda p: radius**2 - ((target - p @ t) ** 2).sum(),
                "jac": lambda p: 2 * t @ (target - p @ t),
            },
        ],
        options={"maxiter": 500, "ftol": 1e-14},
        method="SLSQP",
    )
    return found.x


def test_the_constrained_form_agrees_with_a_constrained_solver() -> None:
    problem = random_problem(n=12, d=2, m=4, evidence=0.6)
    estimate = constrained(problem, radius=0.2, tol=1e-8)
    distance = (problem.preference.mean() + problem.evidence - estimate.mean).norm(dim=-1)
    binding = problem.evidence.norm(dim=-1) > 0.2
    assert bool(binding.any())
    torch.testing.assert_close(
        distance[binding], torch.full_like(distance[binding], 0.2), rtol=1e-6, atol=1e-8
    )
    for index, t, u, z, _ in rows_of(problem):
        referee = constrained_by_scipy(t, u, z, 0.2)
        assert np.abs(estimate.weights[index].numpy() - referee).max() < 1e-4


def test_a_constraint_that_does_not_bind_leaves_the_preference() -> None:
    problem = random_problem(m=3, evidence=0.1)
    estimate = constrained(problem, radius=5.0)
    torch.testing.assert_close(estimate.weights, problem.preference.weights().expand(3, -1))
    assert float(estimate.alpha.abs().max()) == 0
    # u is the solution, known but to rounding.
    assert 0 < float(estimate.mean_error.max()) < 1e-13
    assert float(estimate.dual_error.max()) == 0
    assert bool(estimate.converged.all())


def test_radius_and_alpha_are_two_readings_of_one_problem() -> None:
    alpha = torch.tensor([0.3, 1.0, 8.0, 40.0], dtype=torch.float64)
    base = random_problem(m=4)
    penalty = exact(InferenceProblem(base.preference, base.evidence, alpha), tol=1e-10)
    back = constrained(base, radius=radius_of(penalty), tol=1e-9)
    torch.testing.assert_close(back.alpha, alpha, rtol=1e-6, atol=0)
    torch.testing.assert_close(back.weights, penalty.weights, rtol=1e-6, atol=1e-8)


def test_a_radius_out_of_reach_is_refused_with_the_nearest() -> None:
    u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    problem = InferenceProblem(u, torch.tensor([[3.0]], dtype=torch.float64))  # nearest mean is 2 away
    with pytest.raises(ProblemError, match="the nearest mean there is 2 away"):
        constrained(problem, radius=1.5)
    with pytest.raises(ProblemError, match="radius is -1"):
        constrained(problem, radius=-1.0)


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
    with pytest.raises(ProblemError, match="sigma is 0"):
        alpha_from_noise(0.0)
    with pytest.raises(ProblemError, match="eta is -1"):
        noise_from_alpha(1.0, eta=-1.0)
