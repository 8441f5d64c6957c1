"""Optimal transport as a closeness: its primitives, its problem, an interior-point referee, and what is refused."""

import math
import warnings
from typing import Any

import pytest
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from fenchel import Discrete, InferenceProblem, OptimalTransport
from fenchel.closeness.coupling import Coupling, Part, transport_value
from fenchel.closeness.optimal_transport import COSTS, GivenCost, warn_if_moving_is_cheaper
from fenchel.errors import ConvergenceError, CostWarning, ProblemError
from tests.normal import drawn
from tests.pages import page, run_blocks

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")

ESTIMATORS = ("first_order", "second_order", "exact")


def test_a_cost_knows_its_templates() -> None:
    with pytest.raises(ProblemError, match=r"is not bound to templates; use it"):
        OptimalTransport("dot", 1.0).conjugate(torch.zeros(1, 3), torch.zeros(1, 3).log_softmax(-1))
    with pytest.raises(
        ProblemError, match=r"cost is \(9, 9\), but there are 8 templates \(4 of the preference"
    ):
        GivenCost(given()).matrix(TEMPLATES[..., :8, :], SOURCES)


def test_one_template_and_no_transport_leave_nothing_to_infer() -> None:
    u = Discrete(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    problem = InferenceProblem(
        u, torch.ones(1, 2, dtype=torch.float64), closeness=OptimalTransport("dot", 1.0)
    )
    assert problem.solve("exact").weights.tolist() == [[1.0]]


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
def test_sets_of_templates_side_by_side_are_solved_as_if_alone(lead: tuple[int, ...]) -> None:
    shapes = ((6, 4), (5, 6), (5, 4), (9, 4))
    templates, log_weights, z, atoms = (drawn(*lead, *shape, seed=seed) for seed, shape in enumerate(shapes))
    gamma = torch.linspace(0.3, 1.3, math.prod(lead), dtype=torch.float64).view(*lead, 1)

    def solved(at: Any) -> Tensor:
        closeness = OptimalTransport("squared_euclidean", gamma[at], atoms[at])
        problem = InferenceProblem(Discrete(templates[at], log_weights[at]), z[at], 1.3, closeness)
        return problem.solve("exact", tol=1e-10).weights

    one = tuple(1 for _ in lead)
    torch.testing.assert_close(solved(...)[one], solved(one), atol=1e-9, rtol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimates_carry_gradients_to_a_cost_that_is_given(estimator: str) -> None:
    templates, atoms, z = drawn(4, 3), drawn(4, 3, seed=1), drawn(2, 3, seed=2)
    matrix = drawn(8, 8).sigmoid().requires_grad_()
    # As far as float64 goes, which is farther than it can certify.
    options = {"tol": 1e-13, "throw": False} if estimator == "exact" else {}

    def mean(half: Tensor) -> Tensor:
        closeness = OptimalTransport(half + half.mT, 1.3, atoms)
        return InferenceProblem(Discrete(templates), z, 0.8, closeness).solve(estimator, **options).mean

    assert torch.autograd.gradcheck(mean, (matrix,), eps=1e-6, atol=1e-5, fast_mode=True)


@pytest.mark.filterwarnings("default::fenchel.errors.CostWarning")
def test_a_cost_under_which_moving_is_cheaper_is_warned_of_once() -> None:
    closeness = OptimalTransport("dot", 1.0)
    u = Discrete(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    with pytest.warns(CostWarning, match="'dot', 1 of 2 templates are nearer to another") as record:  # noqa: PT031
        InferenceProblem(u, torch.zeros(1, 2), closeness=closeness)
        InferenceProblem(u, torch.zeros(1, 2), closeness=closeness)
    assert len(record) == 1
    assert record[0].filename == __file__


torch.manual_seed(0)
SOURCES = torch.randn(2, 4, 3, dtype=torch.float64)
TEMPLATES = torch.cat([SOURCES, torch.randn(2, 5, 3, dtype=torch.float64)], -2)


def given() -> torch.Tensor:
    matrix = torch.rand(9, 9, dtype=torch.float64)
    return matrix + matrix.mT


@pytest.mark.parametrize("name", COSTS)
def test_the_matrix_is_that_of_the_formula(name: str) -> None:
    matrix, a, b = COSTS[name].matrix(TEMPLATES, SOURCES), TEMPLATES.unsqueeze(-2), SOURCES.unsqueeze(-3)
    expected = {
        "dot": TEMPLATES.square().sum(-1).amax(-1)[:, None, None] - (a * b).sum(-1),
        "squared_euclidean": (a - b).square().sum(-1),
        "cosine": 1 - torch.cosine_similarity(a, b, dim=-1),
    }
    assert bool((matrix >= 0).all())
    torch.testing.assert_close(matrix, expected[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", [*COSTS, "given"])
def test_the_kernel_is_the_matrix_up_to_a_constant_of_each_source(name: str) -> None:
    cost = GivenCost(given()) if name == "given" else COSTS[name]
    parts = [cost.log_kernel(TEMPLATES, SOURCES, 0.3, span) for span in (slice(0, 2), slice(2, 9))]
    difference = torch.cat(parts, -2) + cost.matrix(TEMPLATES, SOURCES) / 0.3
    torch.testing.assert_close(difference, difference[..., :1, :].expand_as(difference), atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", COSTS)
def test_matrix_and_kernel_have_the_same_gradient_where_rounding_would_make_costs_negative(name: str) -> None:
    equal = torch.nn.functional.normalize(drawn(50, 4, 5), dim=-1).repeat(1, 2, 1).requires_grad_()
    kernels = -COSTS[name].matrix(equal, equal), COSTS[name].log_kernel(equal, equal, 1.0, slice(0, 8))
    weight = drawn(50, 8, 8, seed=1)
    one, other = (torch.autograd.grad((each.softmax(-2) * weight).sum(), equal)[0] for each in kernels)
    torch.testing.assert_close(one, other)


def test_a_template_of_norm_zero_is_at_cost_one_from_all_and_has_no_gradient() -> None:
    templates = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-2.0, 0.0]], requires_grad=True)
    matrix = COSTS["cosine"].matrix(templates, templates)
    torch.testing.assert_close(matrix, torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]))
    (slope,) = torch.autograd.grad((matrix * drawn(3, 3).float()).sum(), templates)
    assert not slope[0].any()
    assert bool(slope[1:].isfinite().all())


def test_distances_of_templates_far_from_the_origin_keep_their_digits() -> None:
    far = torch.tensor([[1e4, 0.0], [1e4 + 0.5, 0.0]])
    torch.testing.assert_close(
        COSTS["squared_euclidean"].matrix(far, far), torch.tensor([[0.0, 0.25], [0.25, 0.0]])
    )


def test_moving_that_is_as_cheap_as_staying_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in COSTS:
            equal = torch.nn.functional.normalize(SOURCES, dim=-1)
            assert not warn_if_moving_is_cheaper(COSTS[name].matrix(equal, equal), name)
        repeated = SOURCES.repeat(1, 2, 1)
        assert not warn_if_moving_is_cheaper(
            COSTS["squared_euclidean"].matrix(repeated, repeated), "squared_euclidean"
        )


torch.manual_seed(0)
P = torch.rand(3, 6, dtype=torch.float64).softmax(-1)
U = torch.randn(1, 4, dtype=torch.float64).softmax(-1)
M = torch.rand(6, 4, dtype=torch.float64)


def gamma(value: float) -> torch.Tensor:
    return torch.full((1, 1), value, dtype=torch.float64)


@pytest.mark.parametrize("strength", [0.05, 0.3, 4.0])
def test_the_value_is_that_of_the_plan_that_pot_finds(strength: float) -> None:
    import ot  # which takes more than a second

    found = transport_value(P, U.log(), M, gamma(strength))
    for p, value in zip(P, found, strict=True):
        plan: Any = ot.sinkhorn(
            p.numpy(),
            U[0].numpy(),
            M.numpy(),
            strength,
            stopThr=1e-13,
            numItermax=200_000,
            method="sinkhorn_log",
        )
        expected = (plan * M.numpy()).sum() + strength * (plan * torch.from_numpy(plan).log().numpy()).sum()
        assert float(value) == pytest.approx(float(expected), abs=1e-9)


def test_weights_that_are_zero_and_costs_that_are_infinite() -> None:
    cost = torch.tensor([[0.0, math.inf], [1.0, math.inf], [math.inf, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64)
    u = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    entropy = -(p[p > 0] * p[p > 0].log()).sum()
    assert float(transport_value(p, u.log(), cost, gamma(0.5))) == pytest.approx(
        -0.5 * float(entropy), abs=1e-10
    )


def test_weight_that_cannot_arrive_is_an_error() -> None:
    cost = torch.tensor([[0.0, math.inf], [math.inf, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    u = torch.tensor([[0.2, 0.8]], dtype=torch.float64)
    with pytest.raises(ConvergenceError, match=r"error of 6\.0e-01 in a marginal after 50 steps"):
        transport_value(p, u.log(), cost, gamma(1.0), max_steps=50)


def parts_of(log_tilt: Tensor, log_kernel: Tensor, size: int) -> list[Part]:
    count = log_kernel.shape[-2]
    spans = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    return [Part(s, lambda s=s: (log_tilt[..., s], log_kernel[..., s, :])) for s in spans]


def draw(scale: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    log_tilt, log_kernel = (drawn(*shape, scale=scale).to(dtype) for shape in ((2, 3, 9), (2, 9, 4)))
    log_u = drawn(2, 1, 4).log_softmax(-1).to(dtype)
    log_tilt[0, 1, 2] = -torch.inf
    log_kernel[1, 3, 0] = -torch.inf
    return log_tilt, log_kernel, log_u


def conditionals(log_tilt: Tensor, log_kernel: Tensor) -> Tensor:
    """(lead, m, n, N), written out."""
    return (log_tilt.unsqueeze(-2) + log_kernel.mT.unsqueeze(-3)).softmax(-1)


@pytest.mark.parametrize("size", [9, 4, 1])
@pytest.mark.parametrize("scale", [1.0, 40.0, 900.0, 1e5])
def test_all_that_a_coupling_gives(scale: float, size: int) -> None:
    log_tilt, log_kernel, log_u = draw(scale)
    p, u = conditionals(log_tilt, log_kernel), log_u.exp()
    coupling = Coupling(parts_of(log_tilt, log_kernel, size), log_u)
    logits = log_tilt.unsqueeze(-2) + log_kernel.mT.unsqueeze(-3)
    values, vector, amounts = drawn(2, 9, 5), drawn(2, 3, 9, seed=1), drawn(2, 3, 4, seed=2)
    close: dict[str, Any] = {"atol": 1e-12, "rtol": 1e-12}
    weights = torch.einsum("bmi,bmit->bmt", u.expand(2, 3, 4), p)
    torch.testing.assert_close(coupling.log_partition(), logits.logsumexp(-1), **close)
    torch.testing.assert_close(coupling.weights(), weights, **close)
    torch.testing.assert_close(coupling.average(values), weights @ values, **close)
    torch.testing.assert_close(coupling.spread(amounts), torch.einsum("bmi,bmit->bmt", amounts, p), **close)
    torch.testing.assert_close(
        coupling.expectation(vector), torch.einsum("bmt,bmit->bmi", vector, p), **close
    )


@pytest.mark.parametrize("scale", [1.0, 20.0, 60.0, 300.0])
def test_float32_is_right_to_rounding_where_factors_underflow(scale: float) -> None:
    log_tilt, log_kernel, log_u = draw(scale, torch.float32)
    coupling = Coupling(parts_of(log_tilt, log_kernel, 9), log_u)
    wide = conditionals(log_tilt.double(), log_kernel.double())
    weights = torch.einsum("bmi,bmit->bmt", log_u.double().exp().expand(2, 3, 4), wide)
    # A logit of size s is itself only known to s·eps.
    torch.testing.assert_close(
        coupling.weights().double(), weights, atol=2e-7 * max(10.0, 10 * scale), rtol=0
    )


def test_the_page_prints_what_becomes_the_area_between_distribution_functions(capsys: Any) -> None:
    names = run_blocks("docs/mathematics-transport.md")
    printed = capsys.readouterr().out
    assert f"```text\n{printed}```" in page("docs/mathematics-transport.md")
    positions = names["x"].numpy()
    area = wasserstein_distance(positions, positions, names["p"][0].numpy(), names["u"].numpy())
    assert area == pytest.approx(2.25)
    assert float(printed.split()[-1]) == pytest.approx(area, abs=2e-3)
