"""Facts about the inference problem, as properties: gap identity, bounds, the n-dimensional form, the proximal step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel import KL, Discrete, InferenceProblem
from fenchel.estimate import Estimate
from fenchel.solver.exact import exact
from tests.problems import problems, random_problem

SLACK = 1e-9


def distances(problem: InferenceProblem, estimate: Estimate) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """True distance and bound, for everything that an estimate bounds."""
    truth = exact(problem, tol=1e-12, throw=False)
    kl = KL().value(estimate.weights, truth.weights.clamp(min=1e-300).log())
    suboptimality = problem.primal(estimate.weights) - problem.primal(truth.weights)
    return {
        "mean": ((estimate.mean - truth.mean).norm(dim=-1), estimate.mean_error + truth.mean_error),
        "dual": ((estimate.dual - truth.dual).norm(dim=-1), estimate.dual_error + truth.dual_error),
        "total variation": (
            (estimate.weights - truth.weights).abs().sum(-1) / 2,
            estimate.total_variation_error + truth.total_variation_error,
        ),
        "divergence": (kl, estimate.gap),
        "suboptimality": (suboptimality, estimate.gap),
    }


def violated(problem: InferenceProblem, estimate: Estimate) -> list[str]:
    """Names of the bounds that do not hold, to rounding relative to the problem's scale."""
    scale = 1 + float(problem.alpha.max()) * float(problem.evidence.norm(dim=-1).max()) ** 2
    return [
        name
        for name, (distance, bound) in distances(problem, estimate).items()
        if not bool((distance <= bound * (1 + 1e-9) + SLACK * scale).all())
    ]


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_every_bound_is_a_bound(problem: InferenceProblem, estimator: str) -> None:
    assert violated(problem, problem.solve(estimator)) == []


@settings(max_examples=40, deadline=None)
@given(problem=problems(), steps=st.integers(0, 3))
def test_bounds_hold_wherever_a_solver_stops(problem: InferenceProblem, steps: int) -> None:
    assert violated(problem, problem.solve("exact", tol=1e-12, max_steps=steps, throw=False)) == []
    assert violated(problem, problem.solve("gradient_ascent", tol=1e-12, max_steps=steps, throw=False)) == []


def test_a_bound_that_is_too_small_is_caught() -> None:
    problem = random_problem(alpha=3.0)
    honest = problem.solve("first_order")
    for name in ("mean", "dual"):
        fields = {**vars(honest), f"{name}_error": getattr(honest, f"{name}_error") * 1e-2}
        assert violated(problem, Estimate(**fields)) == [name]


@settings(max_examples=80, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**31))
def test_the_gap_is_half_the_squared_gradient(problem: InferenceProblem, seed: int) -> None:
    """Fact 1, at any λ."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*problem.shape, problem.preference.dim)
    lam = torch.randn(shape, dtype=torch.float64, generator=generator)
    p = problem.weights(lam)
    gap = problem.primal(p) - problem.dual(lam)
    identity = problem.alpha / 2 * problem.dual_gradient(lam).square().sum(-1)
    scale = 1 + problem.primal(p).abs()
    assert bool(((gap - identity).abs() <= 1e-9 * scale).all())
    torch.testing.assert_close(problem.gap(p, lam), identity, rtol=1e-9, atol=1e-9)


def test_the_gap_of_attention_is_half_the_squared_shift_of_its_output() -> None:
    problem = random_problem(alpha=0.7)
    estimate = problem.solve("first_order")
    shift = estimate.mean - problem.preference.mean()
    torch.testing.assert_close(estimate.gap, 0.7 / 2 * shift.square().sum(-1))


def test_the_gap_of_any_pair_is_primal_minus_dual() -> None:
    problem = random_problem(batch=(2,), m=3, masked=2)
    p = random_problem(batch=(2,), m=3, masked=2, seed=0).preference.weights().expand(2, 3, -1)
    lam = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(problem.gap(p, lam), problem.primal(p) - problem.dual(lam))
    assert bool((problem.gap(p, lam) > 0).all())


def test_suboptimality_splits_into_mean_and_divergence() -> None:
    """Fact 2: P(p) - P(p*) = α/2 ‖h - h*‖² + K(p, p*)."""
    problem = random_problem(alpha=2.0)
    truth, first = exact(problem, tol=1e-12), problem.solve("first_order")
    kl = KL().value(first.weights, truth.weights.log())
    split = (first.mean - truth.mean).square().sum(-1) + kl
    torch.testing.assert_close(
        problem.primal(first.weights) - problem.primal(truth.weights), split, rtol=1e-7, atol=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_the_solution_lies_in_the_span_of_the_templates(problem: InferenceProblem) -> None:
    """Fact 3: λ* = α(z + μ - Tᵀp*)."""
    estimate = exact(problem, tol=1e-10, throw=False)
    shift = (problem.preference.weights() - estimate.weights) @ problem.preference.templates
    expected = problem.alpha_column * (problem.evidence + shift)
    assert bool(((estimate.dual - expected).norm(dim=-1) <= 1.01 * estimate.dual_error + 1e-12).all())


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**31))
def test_a_common_vector_in_the_templates_changes_nothing(problem: InferenceProblem, seed: int) -> None:
    """Fact 3: only differences of templates matter to weights and dual."""
    common = torch.randn(
        problem.preference.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    moved = InferenceProblem(
        Discrete(problem.preference.templates + common, problem.preference.log_weights),
        problem.evidence,
        problem.alpha,
    )
    a, b = exact(problem, tol=1e-9), exact(moved, tol=1e-9)
    apart = (a.dual - b.dual).norm(dim=-1)
    assert bool((apart <= a.dual_error + b.dual_error + 1e-9 * (1 + a.dual.norm(dim=-1))).all())


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**31))
def test_exact_inference_is_firmly_nonexpansive(problem: InferenceProblem, seed: int) -> None:
    """Fact 9: αz ↦ λ* is a proximal step."""
    generator = torch.Generator().manual_seed(seed)
    other = problem.evidence + torch.randn(problem.evidence.shape, dtype=torch.float64, generator=generator)
    a = exact(problem, tol=1e-9).dual
    b = exact(InferenceProblem(problem.preference, other, problem.alpha), tol=1e-9).dual
    moved, by = a - b, problem.alpha_column * (problem.evidence - other)
    assert bool(((moved.square().sum(-1) - (moved * by).sum(-1)) <= 1e-6 * (1 + by.square().sum(-1))).all())
    assert bool((a.norm(dim=-1) <= (problem.alpha_column * problem.evidence).norm(dim=-1) * (1 + 1e-8)).all())


def test_evidence_goes_to_zero_and_the_estimators_meet() -> None:
    """Theorem 2: for a small enough α the first order suffices; the second order gains one more power of α."""

    def relative(estimator: str, alpha: float) -> float:
        problem = random_problem(alpha=alpha)
        truth = exact(problem, tol=1e-13).dual
        return float(((problem.solve(estimator).dual - truth).norm(dim=-1) / truth.norm(dim=-1)).max())

    first = [relative("first_order", alpha) for alpha in (1e-2, 1e-3)]
    second = [relative("second_order", alpha) for alpha in (1e-2, 1e-3)]
    assert first[0] / first[1] == pytest.approx(10, rel=0.1)
    assert second[0] / second[1] == pytest.approx(100, rel=0.2)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 100))
def test_gradients_know_what_changes_nothing(problem: InferenceProblem, seed: int) -> None:
    u = problem.preference
    templates, log_weights = u.templates.clone().requires_grad_(), u.log_weights.clone().requires_grad_()
    wanting = InferenceProblem(Discrete(templates, log_weights), problem.evidence, problem.alpha)
    dual = wanting.solve("exact", tol=1e-9).dual
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(dual.shape, dtype=dual.dtype, generator=generator)
    to_templates, to_weights = torch.autograd.grad((dual * direction).sum(), (templates, log_weights))
    size = 1e-9 * (1 + float(to_templates.abs().max()) * templates.shape[-2])
    assert float(to_templates.sum(-2).abs().max()) <= size
    assert float(to_weights.nan_to_num().sum(-1).abs().max()) <= 1e-9 * (1 + float(to_weights.abs().sum()))


@settings(max_examples=40, deadline=None)
@given(problem=problems(), estimator=st.sampled_from(["first_order", "second_order", "exact"]))
def test_preferences_multiply(problem: InferenceProblem, estimator: str) -> None:
    u = problem.preference
    other = torch.linspace(-1.0, 2.0, u.support_size, dtype=u.dtype)
    added = Discrete(u.templates, u.log_weights + other + 5.0)
    multiplied = Discrete(u.templates, (u.weights() * other.exp()).log())
    options = {"tol": 1e-9} if estimator == "exact" else {}
    one, same = (
        InferenceProblem(v, problem.evidence, problem.alpha).solve(estimator, **options)
        for v in (added, multiplied)
    )
    reach = float(one.dual_error.max() + same.dual_error.max()) if estimator == "exact" else 0.0
    assert float((one.dual - same.dual).norm(dim=-1).max()) <= reach + 1e-9 * (1 + float(one.dual.norm()))
