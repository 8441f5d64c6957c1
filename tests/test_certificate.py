"""Bounds hold for the tensors that are returned: judged by solutions in extended precision, on hard problems."""

import collections
import itertools
from typing import Any

import pytest
import torch

from benchmarks.bounds import ESTIMATORS, check, check_constrained
from benchmarks.hard_problems import EXTENDED, hard_problem, solution_of
from fenchel import Discrete, Estimate, FenchelError, InferenceProblem, OptimalTransport, ProblemError
from fenchel.functional import attention
from tests.problems import random_problem

DTYPES = [torch.float32, torch.float64]
needs_extended = pytest.mark.skipif(not EXTENDED, reason="longdouble has no more digits than float64 here")


def broken(problem: InferenceProblem, estimate: Estimate) -> list[str]:
    truths = [solution_of(problem, query) for query in range(problem.shape[0])]
    return check(problem, estimate, truths, collections.Counter())


@needs_extended
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transport", [False, True])
@pytest.mark.parametrize("first", [0, 20, 40])
def test_every_bound_holds_on_hard_problems(first: int, transport: bool, dtype: torch.dtype) -> None:
    """Ten thousand of them: benchmarks/bounds.py."""
    for seed in range(first, first + (5 if transport else 9)):
        problem = hard_problem(seed, dtype, transport=transport)
        for name, options in ESTIMATORS.items():
            if not (transport and name == "gradient_ascent"):
                assert broken(problem, problem.solve(name, **options)) == [], (seed, name)


@needs_extended
@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_of_the_constrained_form_hold_at_the_multiplier_that_it_finds(dtype: torch.dtype) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for seed in (0, 2, 3, 6, 8):
        assert check_constrained(hard_problem(seed, dtype), counts) == []
    assert counts["mean_error"] == 5
    with pytest.raises(ProblemError, match="no distribution on the templates has its mean within the radius"):
        check_constrained(hard_problem(4, dtype), counts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_huge_template_is_solved_or_said_to_be_not(dtype: torch.dtype) -> None:
    """Hessians that rounding leaves indefinite: 83 of 4,000 such problems ended in a bare LinAlgError."""
    generator = torch.Generator().manual_seed(15)
    for _ in range(10):
        n, d = (int(torch.randint(2, high, (), generator=generator)) for high in (20, 12))
        templates = torch.randn(n, d, dtype=torch.float64, generator=generator)
        templates[0] *= 10 ** (2 + 10 * float(torch.rand((), generator=generator)))
        evidence = torch.randn(2, d, dtype=torch.float64, generator=generator)
        alpha = 10 ** (6 * float(torch.rand((), generator=generator)) - 3)
        problem = InferenceProblem(Discrete(templates.to(dtype)), evidence.to(dtype), alpha)
        for estimate in (problem.solve("exact", throw=False), problem.solve("second_order")):
            for part in (estimate.mean, estimate.weights, estimate.dual):
                assert bool(torch.isfinite(part).all())
            assert bool((estimate.dual_error < torch.inf)[estimate.converged].all())


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
@pytest.mark.parametrize("size", [(12, 5), (100, 64)])
def test_ordinary_bounds_grow_by_no_more_than_rounding(estimator: str, size: tuple[int, int]) -> None:
    problem = random_problem(n=size[0], d=size[1])
    estimate = problem.solve(estimator)
    norm = problem.dual_gradient(estimate.dual).norm(dim=-1)
    for bound, formula in (
        (estimate.mean_error, norm),
        (estimate.dual_error, problem.alpha * norm),
        (estimate.gap, problem.alpha / 2 * norm.square()),
        (estimate.total_variation_error, (problem.alpha / 4).sqrt() * norm),
    ):
        assert bool((bound >= formula * (1 - 1e-14)).all())
        assert bool((bound <= formula + 2e-13).all())


EXTREMES = list(itertools.product((1e-37, 1e15, 1e38), (1e-20, 1.0, 1e18), (0.0, 1e-15, 1.0)))
"""α, norm of the templates, evidence over that norm."""

BRIEFLY: dict[str, dict[str, Any]] = {
    "first_order": {},
    "second_order": {},
    "exact": {"throw": False, "max_steps": 8},
    "gradient_ascent": {"throw": False, "max_steps": 5},
}


TRANSPORTS = {gamma: OptimalTransport("squared_euclidean", gamma, warn=False) for gamma in (1e-6, 1.0)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("what", [*BRIEFLY, *TRANSPORTS, "attention"])
def test_extremes_are_solved_or_refused_by_name(what: Any, dtype: torch.dtype) -> None:
    base = random_problem(n=5, d=3, m=2, spread=0.0)
    estimator, near = "exact" if what in TRANSPORTS else what, TRANSPORTS.get(what)
    for numbers in EXTREMES[:: 5 if near else 1]:
        alpha, norm, evidence = numbers
        templates = (base.preference.templates * norm).to(dtype)
        z = (base.evidence * norm * evidence).to(dtype)
        try:
            if what == "attention":
                given = z[None, None], *(templates[None, None],) * 2
                output = attention(*given, alpha=alpha, scale=1.0, estimator="exact", max_steps=8)
                assert bool(output.isfinite().all()), numbers
                continue
            problem = InferenceProblem(Discrete(templates), z, alpha, near)
            estimate = problem.solve(estimator, **BRIEFLY[estimator])
        except FenchelError:
            assert dtype == torch.float32 or what not in BRIEFLY, numbers
            continue
        for part in (estimate.mean, estimate.weights, estimate.dual):
            assert bool(torch.isfinite(part).all()), numbers
        for bound in (estimate.gap, estimate.mean_error, estimate.dual_error, estimate.total_variation_error):
            assert bool((bound >= 0).all()), numbers
        assert bool((estimate.dual_error < torch.inf)[estimate.converged].all()), numbers


def test_an_answer_that_float32_does_not_hold_is_refused() -> None:
    problem = InferenceProblem(Discrete(torch.eye(2)), torch.full((1, 2), 1e3), 1e37)
    for estimator in ("first_order", "exact"):
        with pytest.raises(
            ProblemError, match=r"overflows float32 \(first at index \(0,\).*give the problem in float64"
        ):
            problem.solve(estimator)
    wide = problem.to(torch.float64).solve("first_order")
    assert bool(torch.isfinite(wide.dual).all())


def test_scores_that_float32_does_not_hold_are_refused() -> None:
    """One key: λ = αz is certified and fits, and its product with the key does not."""
    query, key = torch.full((1, 1, 1, 2), 1e4), torch.tensor([[[[1e4, 0.0]]]])
    with pytest.raises(
        ProblemError, match=r"exact attention has scores of up to .*, which float32 cannot represent"
    ):
        attention(query, key, key, alpha=1e32, scale=1.0, estimator="exact")
