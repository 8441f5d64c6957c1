"""Optimal transport as a closeness: its primitives, its problem, an interior-point referee, and what is refused."""

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem, OptimalTransport
from fenchel.closeness.optimal_transport import COSTS
from fenchel.errors import CostWarning, ProblemError

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")

ESTIMATORS = ("first_order", "second_order", "exact")


def transport_problem(
    seed: int = 0,
    *,
    cost: str | Tensor = "squared_euclidean",
    gamma: float | Tensor = 0.7,
    alpha: float = 1.3,
    lead: tuple[int, ...] = (),
    atoms: int = 9,
    per_query: bool = False,
    evidence: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> InferenceProblem:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=generator, dtype=torch.float64).to(dtype)

    u = Discrete(normal(6, 4), normal(5 if per_query else 1, 6))
    closeness = OptimalTransport(cost, gamma, normal(atoms, 4) if atoms else None)
    return InferenceProblem(u, evidence * normal(5, 4), alpha, closeness)


def by_interior_point(problem: InferenceProblem, query: int) -> np.ndarray:
    """The p of (21), from the primal alone."""
    closeness = problem.closeness
    assert isinstance(closeness, OptimalTransport)
    cost = closeness.cost.matrix(problem.templates, problem.preference.templates).numpy()
    u = problem.preference.weights()[min(query, len(problem.preference.weights()) - 1)].numpy()
    target = (problem.mean(problem.rest_weights()) + problem.evidence)[query].numpy()
    plan = cp.Variable(cost.shape, nonneg=True)
    p = plan @ np.ones(cost.shape[1])
    fit = float(problem.alpha) / 2 * cp.sum_squares(target - problem.templates.numpy().T @ p)
    transport = cp.sum(cp.multiply(cost, plan)) - float(closeness.gamma) * cp.sum(cp.entr(plan))
    cp.Problem(cp.Minimize(fit + transport), [cp.Zero(plan.T @ np.ones(cost.shape[0]) - u)]).solve(
        solver=cp.CLARABEL
    )
    assert plan.value is not None
    return plan.value.sum(1)


@pytest.mark.parametrize("cost", COSTS)
def test_exact_is_what_an_interior_point_solver_finds(cost: str) -> None:
    problem = transport_problem(cost=cost, alpha=3.0)
    estimate = problem.solve("exact", tol=1e-10)
    for query in range(3):
        expected = by_interior_point(problem, query)
        np.testing.assert_allclose(estimate.weights[query].numpy(), expected, atol=2e-5)
    attention = problem.solve("first_order").weights[0].numpy()
    assert np.abs(attention - by_interior_point(problem, 0)).max() > 0.01


def test_the_true_preference_approaches_the_preference_as_gamma_falls() -> None:
    distances = []
    for gamma in (1.0, 0.1, 0.01):
        problem = transport_problem(gamma=gamma)
        true = problem.rest_weights()
        u = torch.nn.functional.pad(problem.preference.weights(), (0, 9))
        value = problem.closeness.value(true, problem.preference.log_weights)
        assert float(value) <= float(
            problem.closeness.value(0.99 * true + 0.01 * u, problem.preference.log_weights)
        )
        torch.testing.assert_close(problem.weights(torch.zeros(1, 4, dtype=torch.float64)), true)
        distances.append(float((true - u).abs().sum()))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-3


def test_templates_of_a_group_share_the_weight_of_the_one_that_is_preferred() -> None:
    groups = torch.tensor([0, 0, 0, 1, 1, 2])
    cost = torch.zeros(6, 6, dtype=torch.float64).masked_fill(groups[:, None] != groups, math.inf)
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    u = Discrete(centres, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log())
    order = torch.tensor([0, 3, 5, 1, 2, 4])
    closeness = OptimalTransport(cost[order][:, order], 0.8, centres[torch.tensor([0, 0, 1])])
    problem = InferenceProblem(u, torch.tensor([[0.4, -0.3]], dtype=torch.float64), closeness=closeness)
    expected = torch.tensor([[0.5 / 3, 0.3 / 2, 0.2, 0.5 / 3, 0.5 / 3, 0.3 / 2]], dtype=torch.float64)
    for estimator in ESTIMATORS:
        torch.testing.assert_close(problem.solve(estimator).weights, expected)
    whole = Discrete(centres[groups], torch.tensor([0.5, 0, 0, 0.3, 0, 0.2], dtype=torch.float64).log())
    same = InferenceProblem(whole, problem.evidence, closeness=OptimalTransport(cost, 0.8))
    torch.testing.assert_close(same.solve("exact").weights[:, order], expected)


def test_one_template_and_no_transport_leave_nothing_to_infer() -> None:
    u = Discrete(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    problem = InferenceProblem(
        u, torch.ones(1, 2, dtype=torch.float64), closeness=OptimalTransport("dot", 1.0)
    )
    assert problem.solve("exact").weights.tolist() == [[1.0]]


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
def test_sets_of_templates_side_by_side_are_solved_as_if_alone(lead: tuple[int, ...]) -> None:
    gamma = torch.rand(*lead, 1, dtype=torch.float64) + 0.3
    problem = transport_problem(lead=lead, gamma=gamma, per_query=True)
    closeness = problem.closeness
    assert isinstance(closeness, OptimalTransport)
    assert closeness.atoms is not None
    together = problem.solve("exact", tol=1e-10)
    where = tuple(1 for _ in lead)
    u = problem.preference
    alone = InferenceProblem(
        Discrete(u.templates[where], u.log_weights[where]),
        problem.evidence[where],
        problem.alpha,
        OptimalTransport("squared_euclidean", float(gamma[where]), closeness.atoms[where]),
    ).solve("exact", tol=1e-10)
    torch.testing.assert_close(together.weights[where], alone.weights, atol=1e-9, rtol=0)


def test_float32_is_refined_until_it_is_certified() -> None:
    problem = transport_problem(dtype=torch.float32, alpha=20.0, gamma=0.1)
    estimate = problem.solve("exact", tol=3e-7)
    assert estimate.mean.dtype == torch.float32
    assert bool(estimate.converged.all())
    wide = transport_problem(alpha=20.0, gamma=0.1).solve("exact", tol=1e-10)
    torch.testing.assert_close(estimate.dual.double(), wide.dual, atol=0, rtol=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimates_carry_gradients_to_a_cost_that_is_given(estimator: str) -> None:
    generator = torch.Generator().manual_seed(1)
    templates, atoms = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    z = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    matrix = torch.rand(8, 8, dtype=torch.float64, generator=generator).requires_grad_()
    # As far as float64 goes, which is farther than it can certify.
    options = {"tol": 1e-13, "throw": False} if estimator == "exact" else {}

    def mean(half: Tensor) -> Tensor:
        closeness = OptimalTransport(half + half.mT, 1.3, atoms)
        return InferenceProblem(Discrete(templates), z, 0.8, closeness).solve(estimator, **options).mean

    assert torch.autograd.gradcheck(mean, (matrix,), eps=1e-6, atol=1e-5, fast_mode=True)


def test_what_needs_templates_or_another_closeness_says_so() -> None:
    log_u = torch.zeros(1, 3).log_softmax(-1)
    with pytest.raises(ProblemError, match=r"does not know the templates that its cost is between"):
        OptimalTransport("dot", 1.0).conjugate(torch.zeros(1, 3), log_u)
    given_matrix = OptimalTransport(torch.zeros(3, 3), 1.0)
    assert float(given_matrix.weights(torch.zeros(1, 3), log_u).sum()) == pytest.approx(1.0)
    with pytest.raises(ProblemError, match="closeness is 'kf'; expected"):
        InferenceProblem(Discrete(torch.eye(2)), torch.zeros(1, 2), closeness="kf")


@pytest.mark.filterwarnings("default::fenchel.errors.CostWarning")
def test_a_cost_under_which_moving_is_cheaper_is_warned_of_once() -> None:
    closeness = OptimalTransport("dot", 1.0)
    u = Discrete(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    with pytest.warns(CostWarning, match="1 of 2 templates are nearer to another") as record:  # noqa: PT031
        InferenceProblem(u, torch.zeros(1, 2), closeness=closeness)
        InferenceProblem(u, torch.zeros(1, 2), closeness=closeness)
    assert len(record) == 1
    assert record[0].filename == __file__
