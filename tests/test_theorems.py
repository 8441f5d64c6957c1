"""The facts of ``docs/mathematics.md`` as properties of any problem, and theorem 2 of the papers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel import KL, Discrete, InferenceProblem
from fenchel.estimate import Estimate
from tests.normal import drawn
from tests.problems import problems, random_problem

SLACK = 1e-9
any_problem = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def exact(problem: InferenceProblem, tol: float = 1e-9) -> Estimate:
    return problem.solve("exact", tol=tol, throw=False)


@any_problem
@given(problem=problems(), steps=st.integers(0, 3))
def test_bounds_hold_wherever_a_solver_stops(problem: InferenceProblem, steps: int) -> None:
    """Fact 2, to rounding relative to the problem's scale."""
    truth = exact(problem, 1e-12)
    slack = SLACK * (1 + float(problem.alpha.max()) * float(problem.evidence.norm(dim=-1).max()) ** 2)
    for estimator in ("exact", "gradient_ascent"):
        found = problem.solve(estimator, tol=1e-12, max_steps=steps, throw=False)
        apart = (found.weights - truth.weights).abs().sum(-1) / 2
        for distance, bound in (
            ((found.mean - truth.mean).norm(dim=-1), found.mean_error + truth.mean_error),
            ((found.dual - truth.dual).norm(dim=-1), found.dual_error + truth.dual_error),
            (apart, found.total_variation_error + truth.total_variation_error),
            (KL().value(found.weights, truth.weights.clamp(min=1e-300).log()), found.gap),
            (problem.primal(found.weights) - problem.primal(truth.weights), found.gap),
        ):
            assert bool((distance <= bound * (1 + 1e-9) + slack).all()), estimator


@any_problem
@given(problem=problems(), seed=seeds)
def test_only_differences_of_templates_matter(problem: InferenceProblem, seed: int) -> None:
    """Fact 3: λ* = α(z + μ - Tᵀp*), and no vector that is added to all templates changes it."""
    u = problem.preference
    common = drawn(u.dim, seed=seed)
    moved = InferenceProblem(Discrete(u.templates + common, u.log_weights), problem.evidence, problem.alpha)
    a, b = exact(problem), exact(moved)
    apart = (a.dual - b.dual).norm(dim=-1)
    assert bool((apart <= a.dual_error + b.dual_error + 1e-9 * (1 + a.dual.norm(dim=-1))).all())
    expected = problem.alpha_column * (problem.evidence + (u.weights() - a.weights) @ u.templates)
    assert bool(((a.dual - expected).norm(dim=-1) <= 1.01 * a.dual_error + 1e-12).all())


@any_problem
@given(problem=problems(largest_alpha=10.0), seed=seeds)
def test_gradients_are_one_linear_solve(problem: InferenceProblem, seed: int) -> None:
    """Fact 8, the four formulas, with a dense Hessian."""
    u = problem.preference
    shape = (*problem.shape[:-1], *u.templates.shape[-2:])
    templates = u.templates.expand(shape).clone().requires_grad_()
    log_weights = u.log_weights.expand(*problem.shape, -1).clone().requires_grad_()
    evidence = problem.evidence.expand(*problem.shape, -1).clone().requires_grad_()
    alpha = problem.alpha.expand(problem.shape).clone().requires_grad_()
    wanting = InferenceProblem(Discrete(templates, log_weights), evidence, alpha)
    dual = exact(wanting).dual
    g = drawn(*dual.shape, seed=seed)
    found = torch.autograd.grad((dual * g).sum(), (evidence, alpha, log_weights, templates))
    with torch.no_grad():
        t, a, lam = templates.unsqueeze(-3), alpha[..., None, None], dual.detach()
        preference, p = log_weights.softmax(-1), wanting.weights(lam)
        offsets = t - (p.unsqueeze(-2) @ t)
        hessian = torch.eye(u.dim, dtype=dual.dtype) / a + offsets.mT @ (p.unsqueeze(-1) * offsets)
        nu = torch.linalg.solve(hessian, g)
        lifted = (t @ nu.unsqueeze(-1)).squeeze(-1)
        f, w = (q * (lifted - (q * lifted).sum(-1, keepdim=True)) for q in (p, preference))
        expected = (nu, (nu * lam).sum(-1) / alpha.square(), w - f, (preference - p).mT @ nu - f.mT @ lam)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.nan_to_num(), other.nan_to_num(), rtol=1e-5, atol=1e-7 * (1 + float(other.abs().max()))
        )


@any_problem
@given(problem=problems(), seed=seeds)
def test_exact_inference_never_amplifies_its_evidence(problem: InferenceProblem, seed: int) -> None:
    """Fact 9: αz ↦ λ* is a proximal step, z ↦ h* is 1-Lipschitz, and h* is no farther from μ than z is long or ĥ is."""
    step = drawn(*problem.evidence.shape, seed=seed)
    other = problem.with_evidence(problem.evidence + step)
    a, b = exact(problem), exact(other)
    moved, by = a.dual - b.dual, -problem.alpha_column * step
    assert bool(((moved.square().sum(-1) - (moved * by).sum(-1)) <= 1e-6 * (1 + by.square().sum(-1))).all())
    slack = a.mean_error + b.mean_error + 1e-13
    assert bool(((a.mean - b.mean).norm(dim=-1) <= step.norm(dim=-1) + slack).all())
    rest = problem.preference.mean()
    first, truth = ((found.mean - rest).norm(dim=-1) for found in (problem.solve("first_order"), a))
    length = problem.evidence.norm(dim=-1)
    assert bool((truth <= torch.minimum(length, first) + slack + 1e-12 * (1 + first)).all())


@any_problem
@given(problem=problems(), estimator=st.sampled_from(["first_order", "second_order", "exact"]))
def test_preferences_multiply(problem: InferenceProblem, estimator: str) -> None:
    """Fact 10."""
    u = problem.preference
    other = torch.linspace(-1.0, 2.0, u.support_size, dtype=u.dtype)
    added = Discrete(u.templates, u.log_weights + other + 5.0)
    multiplied = Discrete(u.templates, (u.weights() * other.exp()).log())
    options = {"tol": 1e-9, "throw": False} if estimator == "exact" else {}
    one, same = (
        InferenceProblem(v, problem.evidence, problem.alpha).solve(estimator, **options)
        for v in (added, multiplied)
    )
    reach = float(one.dual_error.max() + same.dual_error.max()) if estimator == "exact" else 0.0
    assert float((one.dual - same.dual).norm(dim=-1).max()) <= reach + 1e-9 * (1 + float(one.dual.norm()))


def test_evidence_goes_to_zero_and_the_estimators_meet() -> None:
    """Theorem 2: for a small enough α the first order suffices; the second order gains one more power of α."""

    def relative(estimator: str, alpha: float) -> float:
        problem = random_problem(alpha=alpha)
        truth = problem.solve("exact", tol=1e-13).dual
        return float(((problem.solve(estimator).dual - truth).norm(dim=-1) / truth.norm(dim=-1)).max())

    first = [relative("first_order", alpha) for alpha in (1e-2, 1e-3)]
    second = [relative("second_order", alpha) for alpha in (1e-2, 1e-3)]
    assert first[0] / first[1] == pytest.approx(10, rel=0.1)
    assert second[0] / second[1] == pytest.approx(100, rel=0.2)
