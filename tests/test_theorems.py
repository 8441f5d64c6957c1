"""The facts of ``docs/mathematics.md`` as properties, and what it says of the three readings of α."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fenchel import KL, Discrete, InferenceProblem, OptimalTransport
from fenchel.estimate import Estimate
from tests.problems import problem_with_known_answer, problems, random_problem

SLACK = 1e-9


def distances(problem: InferenceProblem, estimate: Estimate) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """True distance and bound (fact 2), for everything that an estimate bounds."""
    truth = problem.solve("exact", tol=1e-12, throw=False)
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


@settings(max_examples=40, deadline=None)
@given(problem=problems(), steps=st.integers(0, 3))
def test_bounds_hold_wherever_a_solver_stops(problem: InferenceProblem, steps: int) -> None:
    assert violated(problem, problem.solve("exact", tol=1e-12, max_steps=steps, throw=False)) == []
    assert violated(problem, problem.solve("gradient_ascent", tol=1e-12, max_steps=steps, throw=False)) == []


def test_the_gap_of_attention_is_half_the_squared_shift_of_its_output() -> None:
    problem = random_problem(alpha=0.7)
    estimate = problem.solve("first_order")
    shift = estimate.mean - problem.preference.mean()
    torch.testing.assert_close(estimate.gap, 0.7 / 2 * shift.square().sum(-1))


@pytest.mark.parametrize(
    ("z", "alpha", "gap", "suboptimality"), [(0.3, 5.0, 2.05, 1.38), (0.8, 2.0, 0.85, 0.32)]
)
def test_the_gap_bounds_the_suboptimality_and_is_not_it(
    z: float, alpha: float, gap: float, suboptimality: float
) -> None:
    """The two examples of fact 1."""
    u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    problem = InferenceProblem(u, torch.tensor([[z]], dtype=torch.float64), alpha)
    first, truth = problem.solve("first_order"), problem.solve("exact", tol=1e-10)
    assert float(first.gap) == pytest.approx(gap, abs=0.005)
    assert float(problem.primal(first.weights) - problem.primal(truth.weights)) == pytest.approx(
        suboptimality, abs=0.005
    )


def test_the_gap_of_any_pair_is_primal_minus_dual() -> None:
    problem = random_problem(batch=(2,), m=3, masked=2)
    p = random_problem(batch=(2,), m=3, masked=2, seed=0).preference.weights().expand(2, 3, -1)
    lam = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(problem.gap(p, lam), problem.primal(p) - problem.dual(lam))
    assert bool((problem.gap(p, lam) > 0).all())


def test_suboptimality_splits_into_mean_and_divergence() -> None:
    """Fact 2: P(p) - P(p*) = α/2 ‖h - h*‖² + K(p, p*)."""
    problem = random_problem(alpha=2.0)
    truth, first = problem.solve("exact", tol=1e-12), problem.solve("first_order")
    kl = KL().value(first.weights, truth.weights.log())
    split = (first.mean - truth.mean).square().sum(-1) + kl
    torch.testing.assert_close(
        problem.primal(first.weights) - problem.primal(truth.weights), split, rtol=1e-7, atol=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_the_solution_lies_in_the_span_of_the_templates(problem: InferenceProblem) -> None:
    """Fact 3: λ* = α(z + μ - Tᵀp*)."""
    estimate = problem.solve("exact", tol=1e-10, throw=False)
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
    a, b = (either.solve("exact", tol=1e-9, throw=False) for either in (problem, moved))
    apart = (a.dual - b.dual).norm(dim=-1)
    assert bool((apart <= a.dual_error + b.dual_error + 1e-9 * (1 + a.dual.norm(dim=-1))).all())


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**31))
def test_exact_inference_is_firmly_nonexpansive(problem: InferenceProblem, seed: int) -> None:
    """Fact 9: αz ↦ λ* is a proximal step."""
    generator = torch.Generator().manual_seed(seed)
    other = problem.evidence + torch.randn(problem.evidence.shape, dtype=torch.float64, generator=generator)
    at_other = InferenceProblem(problem.preference, other, problem.alpha)
    a, b = (either.solve("exact", tol=1e-9, throw=False).dual for either in (problem, at_other))
    moved, by = a - b, problem.alpha_column * (problem.evidence - other)
    assert bool(((moved.square().sum(-1) - (moved * by).sum(-1)) <= 1e-6 * (1 + by.square().sum(-1))).all())
    assert bool((a.norm(dim=-1) <= (problem.alpha_column * problem.evidence).norm(dim=-1) * (1 + 1e-8)).all())


@pytest.mark.parametrize("alpha", [0.3, 1.0, 8.0])
def test_the_damped_fixed_point_contracts_where_fact_15_says(alpha: float) -> None:
    problem, answer = problem_with_known_answer(m=1, alpha=alpha, seed=3)
    assert isinstance(problem.preference, Discrete)
    templates = problem.preference.templates
    centre = problem.evidence + problem.preference.weights() @ templates

    def image(dual: Tensor, damping: float) -> Tensor:
        mean = torch.softmax(dual @ templates.T, -1) @ templates
        return (1 - damping) * dual + damping * alpha * (centre - mean)

    weights = torch.softmax(answer @ templates.T, -1).squeeze(0)
    covariance = torch.cov(templates.T, aweights=weights, correction=0)
    values, vectors = torch.linalg.eigh(covariance)
    limit = 2 / (1 + alpha * float(values[-1]))
    for damping in (0.5 * limit, 0.9 * limit, 1.1 * limit):
        torch.testing.assert_close(image(answer, damping), answer, rtol=0, atol=1e-12)
        factors = []
        for value, vector in zip(values, vectors.T, strict=True):
            moved = image(answer + 1e-6 * vector, damping) - answer
            factors.append(float(moved @ vector) / 1e-6)
            assert factors[-1] == pytest.approx(1 - damping * (1 + alpha * float(value)), abs=1e-4)
        assert (max(abs(factor) for factor in factors) < 1) == (damping < limit)


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


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 100))
def test_gradients_know_what_changes_nothing(problem: InferenceProblem, seed: int) -> None:
    """Fact 8: a constant added to all templates, or to all log weights."""
    u = problem.preference
    templates, log_weights = u.templates.clone().requires_grad_(), u.log_weights.clone().requires_grad_()
    wanting = InferenceProblem(Discrete(templates, log_weights), problem.evidence, problem.alpha)
    dual = wanting.solve("exact", tol=1e-9, throw=False).dual
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(dual.shape, dtype=dual.dtype, generator=generator)
    to_templates, to_weights = torch.autograd.grad((dual * direction).sum(), (templates, log_weights))
    size = 1e-9 * (1 + float(to_templates.abs().max()) * templates.shape[-2])
    assert float(to_templates.sum(-2).abs().max()) <= size
    assert float(to_weights.nan_to_num().sum(-1).abs().max()) <= 1e-9 * (1 + float(to_weights.abs().sum()))


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**31))
def test_exact_attention_moves_its_output_no_farther_than_its_evidence(
    problem: InferenceProblem, seed: int
) -> None:
    """Fact 9: z ↦ h* is 1-Lipschitz and ‖h* - μ‖ ≤ ‖z‖."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.randn(problem.evidence.shape, dtype=torch.float64, generator=generator)
    other = InferenceProblem(problem.preference, problem.evidence + step, problem.alpha)
    a, b = problem.solve("exact", tol=1e-9, throw=False), other.solve("exact", tol=1e-9, throw=False)
    slack = a.mean_error + b.mean_error + 1e-13
    assert bool(((a.mean - b.mean).norm(dim=-1) <= step.norm(dim=-1) + slack).all())
    moved = (a.mean - problem.preference.mean()).norm(dim=-1)
    assert bool((moved <= problem.evidence.norm(dim=-1) + slack).all())


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_exact_inference_never_moves_the_mean_farther_than_first_order(problem: InferenceProblem) -> None:
    """Fact 9, at the end: ‖h* - μ‖ ≤ ‖ĥ - μ‖."""
    truth, rest = problem.solve("exact", tol=1e-9, throw=False), problem.preference.mean()
    first = problem.solve("first_order").mean
    reach = (first - rest).norm(dim=-1)
    assert bool(((truth.mean - rest).norm(dim=-1) <= reach + truth.mean_error + 1e-12 * (1 + reach)).all())


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_one_question_is_its_own_exact_answer(problem: InferenceProblem) -> None:
    """Fact 9, at the end: z = h(αμ)."""
    dual = problem.alpha_column * problem.preference.mean()
    question = problem.mean(problem.weights(dual.expand_as(problem.evidence)))
    asked = InferenceProblem(problem.preference, question, problem.alpha)
    truth = asked.solve("exact", tol=1e-9, throw=False)
    scale = 1 + question.norm(dim=-1)
    assert bool(((truth.mean - question).norm(dim=-1) <= truth.mean_error + 1e-9 * scale).all())


def test_first_order_attention_can_move_its_output_farther_than_its_evidence() -> None:
    """Templates ±1 and α = 5: ĥ = tanh 5z, whose slope at 0 is α λ_max(Σ) = 5."""
    u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    z = torch.tensor([[0.3], [1e-6]], dtype=torch.float64)
    first = InferenceProblem(u, z, 5.0).solve("first_order")
    assert float(first.mean[0]) > 2 * float(z[0])
    assert float(first.mean[1] / z[1]) == pytest.approx(5.0)


def roots_of_the_papers_radius(templates: list[float], weights: list[float], evidence: float) -> int:
    """At how many α, on a fine grid, ‖μ + z - h*‖² passes 1/(2α)."""
    alpha = torch.logspace(-3, 4, 1401, dtype=torch.float64)
    u = Discrete(
        torch.tensor(templates, dtype=torch.float64)[:, None],
        torch.tensor(weights, dtype=torch.float64).log(),
    )
    z = torch.full((len(alpha), 1), evidence, dtype=torch.float64)
    dual = InferenceProblem(u, z, alpha).solve("exact", tol=1e-8).dual.squeeze(-1)
    above = dual.square() > alpha / 2
    return int((above[1:] != above[:-1]).sum())


def test_the_papers_radius_is_that_of_the_penalty_form_at_no_alpha_one_or_two() -> None:
    """‖λ*(α)‖² = α/2 is what r² = 1/(2α) asks for."""
    assert roots_of_the_papers_radius([1.0, -1.0], [0.5, 0.5], 0.1) == 0
    assert roots_of_the_papers_radius([1.0, -1.0], [0.5, 0.5], 1.5) == 1
    assert roots_of_the_papers_radius([1.0, -1.0], [0.99, 0.01], -1.5) == 2


@settings(max_examples=40, deadline=None)
@given(problem=problems(largest_alpha=10.0), seed=st.integers(0, 2**31))
def test_gradients_are_one_linear_solve(problem: InferenceProblem, seed: int) -> None:
    """Fact 8, the four formulas, with a dense Hessian."""
    u = problem.preference
    shape = (*problem.shape[:-1], *u.templates.shape[-2:])
    templates = u.templates.expand(shape).clone().requires_grad_()
    log_weights = u.log_weights.expand(*problem.shape, -1).clone().requires_grad_()
    evidence = problem.evidence.expand(*problem.shape, -1).clone().requires_grad_()
    alpha = problem.alpha.expand(problem.shape).clone().requires_grad_()
    wanting = InferenceProblem(Discrete(templates, log_weights), evidence, alpha)
    dual = wanting.solve("exact", tol=1e-9, throw=False).dual
    g = torch.randn(dual.shape, dtype=dual.dtype, generator=torch.Generator().manual_seed(seed))
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


@st.composite
def transports(draw: st.DrawFn) -> InferenceProblem:
    """Problems whose closeness is optimal transport to more templates than are preferred."""
    base = random_problem(
        n=draw(st.integers(1, 8)),
        d=draw(st.integers(1, 5)),
        m=draw(st.integers(1, 3)),
        alpha=draw(st.floats(1e-2, 10.0)),
        spread=draw(st.sampled_from([0.0, 1.0, 10.0])),
        per_query=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )
    count = draw(st.integers(0, 5))
    generator = torch.Generator().manual_seed(count)
    atoms = torch.randn(count, base.preference.dim, dtype=torch.float64, generator=generator)
    cost = draw(st.sampled_from(["squared_euclidean", "dot", "cosine"]))
    closeness = OptimalTransport(cost, draw(st.floats(0.1, 5.0)), atoms, warn=False)
    return InferenceProblem(base.preference, base.evidence, base.alpha, closeness)


def conditionals(problem: InferenceProblem, lam: Tensor) -> Tensor:
    """Every source's weights p_i(t), (m, n, N), one array with an entry for each query, source and template."""
    closeness = problem.closeness
    assert isinstance(closeness, OptimalTransport)
    cost = closeness.cost.matrix(problem.templates, problem.preference.templates)
    exponents = (problem.potential(lam).unsqueeze(-2) - cost.mT) / closeness.gamma
    return exponents.softmax(-1)


def moment_of_sources(problem: InferenceProblem, lam: Tensor) -> Tensor:
    """Σ u_i Cov_{p_i}, (m, d, d)."""
    p = conditionals(problem, lam)
    u = problem.preference.weights().expand(len(p), -1)
    offsets = problem.templates - (p @ problem.templates).unsqueeze(-2)
    covariances = offsets.mT @ (p.unsqueeze(-1) * offsets)
    return (u[..., None, None] * covariances).sum(1)


def some_dual_points(problem: InferenceProblem, seed: int, size: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(problem.evidence.shape, dtype=torch.float64, generator=generator)


@settings(max_examples=40, deadline=None)
@given(problem=transports(), seed=st.integers(0, 2**31), size=st.sampled_from([0.0, 1.0, 30.0, 1e4]))
def test_transport_is_two_matrix_products(problem: InferenceProblem, seed: int, size: float) -> None:
    """Fact 6: P = A ⊙ ((u/Z) Kᵀ) is the definition, entry by entry, where factors underflow too."""
    lam = some_dual_points(problem, seed, size)
    u = problem.preference.weights().expand(len(lam), -1)
    expected = (u.unsqueeze(-2) @ conditionals(problem, lam)).squeeze(-2)
    torch.testing.assert_close(problem.weights(lam), expected, rtol=1e-9, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(problem=transports(), seed=st.integers(0, 2**31))
def test_the_gap_of_transport_is_half_the_squared_gradient(problem: InferenceProblem, seed: int) -> None:
    """Fact 7: fact 1 with μ̃ for μ."""
    lam = some_dual_points(problem, seed)
    gap = problem.primal_at(lam) - problem.dual(lam)
    identity = problem.alpha / 2 * problem.dual_gradient(lam).square().sum(-1)
    torch.testing.assert_close(gap, identity, rtol=1e-9, atol=1e-9)
    first = problem.solve("first_order")
    shift = first.mean - problem.mean(problem.rest_weights())
    torch.testing.assert_close(first.gap, problem.alpha / 2 * shift.square().sum(-1), rtol=1e-7, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(problem=transports(), seed=st.integers(0, 2**31))
def test_suboptimality_under_transport_is_at_least_what_fact_7_says(
    problem: InferenceProblem, seed: int
) -> None:
    lam = some_dual_points(problem, seed)
    truth = problem.solve("exact", tol=1e-11, throw=False)
    p = problem.weights(lam)
    closeness = problem.closeness
    assert isinstance(closeness, OptimalTransport)
    suboptimality = problem.primal_at(lam) - problem.primal_at(truth.dual)
    apart = (problem.mean(p) - truth.mean).square().sum(-1)
    least = problem.alpha / 2 * apart + closeness.gamma / 2 * (p - truth.weights).abs().sum(-1).square()
    assert bool((suboptimality >= least - 1e-8 * (1 + suboptimality)).all())
    for estimator in ("first_order", "second_order"):
        estimate = problem.solve(estimator)
        for true, bound in (
            ((estimate.mean - truth.mean).norm(dim=-1), estimate.mean_error + truth.mean_error),
            ((estimate.dual - truth.dual).norm(dim=-1), estimate.dual_error + truth.dual_error),
            (
                (estimate.weights - truth.weights).abs().sum(-1) / 2,
                estimate.total_variation_error + truth.total_variation_error,
            ),
        ):
            assert bool((true <= bound).all())


@settings(max_examples=40, deadline=None)
@given(problem=transports())
def test_the_second_order_point_of_transport_is_its_formula(problem: InferenceProblem) -> None:
    """Fact 7: λ = α(I + (α/γ) Σ u_i Σ_i)⁻¹ z, and ‖h* - μ̃‖ ≤ ‖z‖ of fact 9."""
    closeness = problem.closeness
    assert isinstance(closeness, OptimalTransport)
    moment = moment_of_sources(problem, torch.zeros_like(problem.evidence))
    matrix = torch.eye(problem.preference.dim, dtype=torch.float64) + problem.alpha / closeness.gamma * moment
    expected = problem.alpha * torch.linalg.solve(matrix, problem.evidence)
    torch.testing.assert_close(problem.solve("second_order").dual, expected, rtol=1e-8, atol=1e-10)
    solution = problem.solve("exact", tol=1e-9, throw=False)
    moved = (solution.mean - problem.mean(problem.rest_weights())).norm(dim=-1)
    assert bool((moved <= problem.evidence.norm(dim=-1) + solution.mean_error).all())


@settings(max_examples=30, deadline=None)
@given(problem=transports(), seed=st.integers(0, 2**31))
def test_the_matrix_of_fact_8_under_transport(problem: InferenceProblem, seed: int) -> None:
    """Its inverse times g is the gradient to z, with I/α + (1/γ) Σ u_i Σ_{p_i} in place of I/α + Cov_p."""
    closeness = problem.closeness
    assert isinstance(closeness, OptimalTransport)
    evidence, alpha = problem.evidence.clone().requires_grad_(), problem.alpha.clone().requires_grad_()
    wanting = InferenceProblem(problem.preference, evidence, alpha, closeness)
    dual = wanting.solve("exact", tol=1e-10, throw=False).dual
    g = some_dual_points(problem, seed)
    to_evidence, to_alpha = torch.autograd.grad((dual * g).sum(), (evidence, alpha))
    lam = dual.detach()
    matrix = moment_of_sources(problem, lam) / closeness.gamma + torch.eye(lam.shape[-1]) / problem.alpha
    nu = torch.linalg.solve(matrix, g)
    torch.testing.assert_close(to_evidence, nu, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(to_alpha, (nu * lam).sum() / problem.alpha.square(), rtol=1e-6, atol=1e-8)
