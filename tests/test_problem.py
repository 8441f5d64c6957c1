"""The problem's objectives, and what it refuses."""

import pytest
import torch

from fenchel import Discrete, InferenceProblem, ProblemError
from tests.problems import random_problem

T = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Z = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_objectives_are_the_formulas_written_out() -> None:
    log_u = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1], dtype=torch.float64).log()
    problem = InferenceProblem(Discrete(T, log_u), Z, 1.7)
    u, p = log_u.exp(), torch.full((4, 6), 1 / 6, dtype=torch.float64)
    mu = u @ T
    primal = 1.7 / 2 * (mu + Z - p @ T).square().sum(-1) + (p * (p / u).log()).sum(-1)
    torch.testing.assert_close(problem.primal(p), primal)
    lam = Z * 0.3
    cumulant = (u * (lam @ T.T).exp()).sum(-1).log()
    dual = (lam * (mu + Z)).sum(-1) - lam.square().sum(-1) / (2 * 1.7) - cumulant
    torch.testing.assert_close(problem.dual(lam), dual)


def test_the_primal_is_infinite_outside_the_support() -> None:
    mask = torch.tensor([True, True, True, True, True, False])
    problem = InferenceProblem(Discrete(T, mask), Z)
    assert bool(torch.isinf(problem.primal(torch.full((4, 6), 1 / 6, dtype=torch.float64))).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32_and_say_so(dtype: torch.dtype) -> None:
    problem = InferenceProblem(Discrete(T.to(dtype)), Z.to(dtype))
    estimate = problem.solve("exact", tol=1e-5)
    assert problem.dtype == estimate.mean.dtype == torch.float32
    assert f"computed in torch.float32 (given {dtype})" in repr(problem)


def test_the_same_problem_in_another_dtype() -> None:
    problem = random_problem(dtype=torch.float32)
    assert problem.to(torch.float32) is problem
    wide = problem.to(torch.float64)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.dual(wide.evidence).float(), problem.dual(problem.evidence))


@pytest.mark.parametrize("alpha", [0.1, 1e-8])
@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_bounds_include_the_rounding_of_alpha(estimator: str, alpha: float) -> None:
    templates, evidence = T.float(), torch.cat([Z, Z.flip(0), -Z, 2 * Z]).float()
    estimate = InferenceProblem(Discrete(templates), evidence, alpha).solve(estimator)
    wide = InferenceProblem(Discrete(templates.double()), evidence.double(), alpha)
    exact = wide.solve("exact", tol=1e-13, throw=False)
    for name, error in (("dual", "dual_error"), ("mean", "mean_error")):
        apart = (getattr(estimate, name).double() - getattr(exact, name)).norm(dim=-1)
        assert bool((apart <= getattr(estimate, error).double() + getattr(exact, error)).all())


def test_an_estimate_without_gradients_is_not_given_to_who_wants_them() -> None:
    problem = random_problem()
    evidence = problem.evidence.clone().requires_grad_()
    wanting = InferenceProblem(problem.preference, evidence)
    with pytest.raises(
        ProblemError, match="evidence require gradients, which 'constrained' does not support"
    ):
        wanting.solve("constrained", radius=0.5)
    with torch.no_grad():
        assert not wanting.solve("exact").mean.requires_grad


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact", "gradient_ascent"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimates_have_the_problems_shape_dtype_and_consistent_parts(
    estimator: str, dtype: torch.dtype
) -> None:
    options = {"tol": 1e-4} if estimator in ("exact", "gradient_ascent") else {}
    problem = random_problem(batch=(2, 3), m=4, n=7, d=5, dtype=dtype)
    estimate = problem.solve(estimator, **options)
    assert estimate.mean.shape == estimate.dual.shape == (2, 3, 4, 5)
    assert estimate.weights.shape == (2, 3, 4, 7)
    for name in ("gap", "mean_error", "dual_error", "steps", "converged", "alpha"):
        assert getattr(estimate, name).shape == (2, 3, 4)
    assert estimate.mean.dtype == estimate.gap.dtype == dtype
    torch.testing.assert_close(estimate.mean, problem.mean(estimate.weights), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(estimate.weights, problem.weights(estimate.dual), rtol=1e-4, atol=1e-5)


def test_float32_bounds_include_what_rounding_moved() -> None:
    """One template: the solution is known to be αz and h = t, and only rounding is left to bound."""
    t = torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float32)
    problem = InferenceProblem(Discrete(t), torch.tensor([[0.1, 0.7]]), 1 / 3)
    estimate = problem.solve("exact", tol=1e-6)
    truth = problem.alpha.double() * problem.evidence.double()
    moved = (estimate.dual.double() - truth).norm()
    assert 0 < float(moved) <= float(estimate.dual_error)


def test_estimates_are_compared_by_identity_and_other_evidence_is_checked():
    problem = InferenceProblem(Discrete(torch.randn(4, 2)), torch.randn(3, 2))
    one, other = problem.solve("first_order"), problem.solve("first_order")
    assert one == one
    assert one != other
    for evidence in (torch.full((3, 2), torch.nan), torch.randn(3, 5)):
        with pytest.raises(ProblemError, match="evidence"):
            problem.with_evidence(evidence)
    assert problem.with_evidence(torch.randn(5, 2)).shape == (5,)
