"""The exact solver against independent ones, at the edges, and in what it promises."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings

from fenchel import ConvergenceError, Discrete, Gaussian, InferenceProblem, Tsallis
from fenchel.estimate import Estimate
from tests.problems import (
    by_dense_newton,
    problem_with_known_answer,
    problems,
    random_problem,
    rows_of,
    stacked,
)


def disagreement(problem: InferenceProblem, estimate: Estimate) -> float:
    """Largest difference of weights from a dense float64 Newton, query by query."""
    referee = stacked(problem, [by_dense_newton(*row[1:])[1] for row in rows_of(problem)])
    return float((estimate.weights.double() - referee).abs().max())


@settings(max_examples=60, deadline=None)
@given(problems())
def test_agrees_with_a_dense_newton(problem: InferenceProblem) -> None:
    estimate = problem.solve("exact", tol=1e-9, throw=False)
    referee = stacked(problem, [by_dense_newton(*row[1:])[0] for row in rows_of(problem)])
    referee_error = problem.alpha * problem.dual_gradient(referee).norm(dim=-1)
    assert bool((referee_error <= 1e-5 * (problem.alpha * problem.evidence.norm(dim=-1))).all())
    # Both say how far at most they are from λ*, and weights follow λ with the norm of the templates as factor.
    rounding = 1e-13 * float(referee.norm(dim=-1).max())
    apart = float((estimate.dual_error + referee_error).max()) + rounding
    assert float((estimate.dual - referee).norm(dim=-1).max()) <= apart
    longest = float(problem.preference.templates.norm(dim=-1).max())
    assert disagreement(problem, estimate) <= 1e-12 + longest * apart


EDGES = {
    "alpha 1e-3": {"alpha": 1e-3},
    "alpha 1e3": {"alpha": 1e3},
    "one template": {"n": 1},
    "n much larger than d": {"n": 300, "d": 2},
    "d much larger than n": {"n": 3, "d": 200},
    "norm 1e-4": {"norm": 1e-4},
    "norm 1e4": {"norm": 1e4},
    "norm 1e4, small alpha": {"norm": 1e4, "alpha": 1e-3},
    "norm 1e-4, large alpha": {"norm": 1e-4, "alpha": 1e3},
    "log weights down to -80": {"spread": 30.0},
    "masked": {"masked": 8, "per_query": True},
    "evidence far outside the templates": {"evidence": 100.0, "alpha": 10.0},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("edge", EDGES)
def test_converges_at_the_edges_as_certified(edge: str, dtype: torch.dtype) -> None:
    problem = random_problem(**EDGES[edge], dtype=dtype)
    estimate = problem.solve("exact", tol=1e-6)
    assert bool(estimate.converged.all())
    assert bool((estimate.dual_error <= 1e-6 * estimate.dual.norm(dim=-1)).all())


def faint_problem(seed: int, queries: int) -> InferenceProblem:
    """One query with evidence at which rounding shows in float64, repeated, and more templates than dimensions."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    d = int(uniform(1, 5))
    n = 2 * d + int(uniform(1, 8))
    templates = 10 ** uniform(-2, -0.5) * torch.randn(n, d, dtype=torch.float64, generator=generator)
    log_weights = uniform(0, 15) * torch.randn(n, dtype=torch.float64, generator=generator)
    z = 10 ** uniform(-14, -10) * torch.randn(1, d, dtype=torch.float64, generator=generator)
    return InferenceProblem(Discrete(templates, log_weights), z.repeat(queries, 1), 10 ** uniform(-1, 1))


def literal_problem(seed: int, queries: int) -> InferenceProblem:
    """Whose answer is near the first-order point, closer than Newton's method takes a step for."""
    del seed
    templates = torch.tensor([[0.0], [0.2], [-0.1], [0.3], [0.1]], dtype=torch.float64)
    log_weights = torch.tensor([5.0, 15, -7, -8, -5], dtype=torch.float64)
    z = torch.full((queries, 1), 3e-12, dtype=torch.float64)
    return InferenceProblem(Discrete(templates, log_weights), z, 1.76)


@pytest.mark.parametrize(("problem", "seeds"), [(literal_problem, 1), (faint_problem, 40)])
def test_a_query_alone_has_the_answer_of_the_query_repeated_and_stays_what_it_is(
    problem: Callable[[int, int], InferenceProblem], seeds: int
) -> None:
    for seed in range(seeds):
        one, two = problem(seed, 1), problem(seed, 2)
        z = one.evidence.clone()
        alone, both = (asked.solve("exact", throw=False) for asked in (one, two))
        assert one.evidence.equal(z), seed
        apart = (alone.dual - both.dual).norm(dim=-1)
        assert bool((apart <= alone.dual_error + both.dual_error).all()), seed


@pytest.mark.parametrize("closeness", [Tsallis(1.5), Tsallis(1.5, "csiszar"), Tsallis(2)], ids=repr)
def test_no_evidence_is_certified_whatever_rounding_leaves(closeness: Tsallis) -> None:
    generator = torch.Generator().manual_seed(0)
    templates = torch.randn(7, 4, dtype=torch.float64, generator=generator)
    log_u = torch.randn(64, 7, dtype=torch.float64, generator=generator).log_softmax(-1)
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


def test_evidence_that_float64_cannot_certify_is_said() -> None:
    """Families that say how far rounding goes by squares have an allowance for those that underflow."""
    u = Gaussian(torch.zeros(3, dtype=torch.float64), variance=2.0)
    problem = InferenceProblem(u, torch.full((1, 3), 1e-170, dtype=torch.float64))
    with pytest.raises(ConvergenceError, match="float64 cannot certify"):
        problem.solve("exact")


def test_a_row_that_stops_early_says_so() -> None:
    problem = random_problem(m=6, alpha=50.0, evidence=4.0)
    stopped = problem.solve("exact", tol=1e-12, max_steps=1, throw=False)
    assert not bool(stopped.converged.all())
    assert int(stopped.steps.max()) == 1
    with pytest.raises(
        ConvergenceError, match=r"of 6 queries did not reach dual_error <= 1e-12 .* raise max_steps"
    ):
        problem.solve("exact", tol=1e-12, max_steps=1)


def test_float32_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ConvergenceError, match="give the problem in float64"):
        random_problem(dtype=torch.float32).solve("exact", tol=1e-10)


def test_what_float64_cannot_certify_is_not_claimed() -> None:
    """α‖t‖² = 1e11: the float64 rounding of λ alone moves the gradient by more than the certificate allows."""
    problem, truth = problem_with_known_answer(n=30, d=8, alpha=1e3, norm=1e4)
    estimate = problem.solve("exact", tol=1e-9, throw=False)
    assert not bool(estimate.converged.all())
    missed = (estimate.dual - truth).norm(dim=-1)
    assert bool((missed <= estimate.dual_error).all())
    with pytest.raises(ConvergenceError, match="queries did not reach dual_error <= 1e-09"):
        problem.solve("exact", tol=1e-9)


def test_rows_without_evidence_take_no_steps() -> None:
    hard = random_problem(m=64, n=20, d=12, evidence=5.0)
    silent = hard.evidence.clone()
    silent[:56] = 0
    mixed = InferenceProblem(hard.preference, silent).solve("exact", tol=1e-8)
    assert int(mixed.steps[:56].max()) == 0
    assert int(mixed.steps[56:].min()) > 0
