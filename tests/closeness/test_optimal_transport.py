"""Optimal transport as a closeness: its primitives, its problem, an interior-point referee, and what is refused."""

import math
import warnings
from typing import Any

import pytest
import torch
from scipy.stats import wasserstein_distance

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
        ProblemError, match=r"cost has shape \(9, 9\); expected .*\(..., 8, 8\), for 4 templates of the"
    ):
        GIVEN.matrix(TEMPLATES[..., :8, :], SOURCES)


def test_one_template_leaves_nothing_to_infer() -> None:
    problem = InferenceProblem(Discrete(drawn(1, 2)), drawn(1, 2), closeness=OptimalTransport("dot", 1.0))
    assert problem.solve("exact").weights.tolist() == [[1.0]]


@pytest.mark.filterwarnings("default::fenchel.errors.CostWarning")
def test_a_cost_under_which_moving_is_cheaper_is_warned_of_once() -> None:
    closeness = OptimalTransport("dot", 1.0)
    u = Discrete(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    with pytest.warns(CostWarning, match="'dot', 1 of 2 templates are nearer to another") as record:  # noqa: PT031
        InferenceProblem(u, torch.zeros(1, 2), closeness=closeness)
        InferenceProblem(u, torch.zeros(1, 2), closeness=closeness)
    assert len(record) == 1
    assert record[0].filename == __file__


SOURCES = drawn(2, 4, 3)
TEMPLATES = torch.cat([SOURCES, drawn(2, 5, 3, seed=1)], -2)
GIVEN = GivenCost(drawn(9, 9).sigmoid() + drawn(9, 9).sigmoid().mT)


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
        equal = torch.nn.functional.normalize(SOURCES, dim=-1).repeat(1, 2, 1)
        for name in COSTS:
            assert not warn_if_moving_is_cheaper(COSTS[name].matrix(equal, equal), name)


@pytest.mark.parametrize("size", [9, 4])
@pytest.mark.parametrize("scale", [1.0, 40.0, 1e5])
def test_a_coupling_is_the_conditionals_written_out(scale: float, size: int) -> None:
    """Also where factors underflow, and in parts."""
    log_tilt, log_kernel, log_u = drawn(2, 3, 9, scale=scale), drawn(2, 9, 4, scale=scale), drawn(2, 1, 4)
    log_tilt[0, 1, 2] = log_kernel[1, 3, 0] = -torch.inf
    spans = [slice(start, min(start + size, 9)) for start in range(0, 9, size)]
    parts = [Part(span, lambda s=span: (log_tilt[..., s], log_kernel[..., s, :])) for span in spans]
    coupling = Coupling(parts, log_u.log_softmax(-1))
    logits = log_tilt.unsqueeze(-2) + log_kernel.mT.unsqueeze(-3)
    p, values, vector = logits.softmax(-1), drawn(2, 9, 5), drawn(2, 3, 9, seed=1)
    weights = torch.einsum("bmi,bmit->bmt", log_u.softmax(-1).expand(2, 3, 4), p)
    given = coupling.average(values), coupling.expectation(vector)
    found = coupling.log_partition(), coupling.weights(), *given
    expected = logits.logsumexp(-1), weights, weights @ values, torch.einsum("bmt,bmit->bmi", vector, p)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def gamma(value: float) -> torch.Tensor:
    return torch.full((1, 1), value, dtype=torch.float64)


@pytest.mark.parametrize("strength", [0.05, 0.3, 4.0])
def test_the_value_is_that_of_the_plan_that_pot_finds(strength: float) -> None:
    import ot  # which takes more than a second

    p, u, cost = drawn(3, 6).softmax(-1), drawn(1, 4, seed=1).softmax(-1), drawn(6, 4, seed=2).sigmoid()
    options: dict[str, Any] = {"stopThr": 1e-13, "numItermax": 200_000, "method": "sinkhorn_log"}
    for row, value in zip(p, transport_value(p, u.log(), cost, gamma(strength)), strict=True):
        plan: Any = torch.from_numpy(
            ot.sinkhorn(row.numpy(), u[0].numpy(), cost.numpy(), strength, **options)
        )
        expected = (plan * cost).sum() + strength * (plan * plan.log()).sum()
        assert float(value) == pytest.approx(float(expected), abs=1e-9)


def test_weights_that_are_zero_and_costs_that_are_infinite() -> None:
    inf = math.inf
    p, u, cost = (
        torch.tensor(each, dtype=torch.float64)
        for each in ([[0.25, 0.0, 0.75]], [[0.25, 0.75]], [[0.0, inf], [1.0, inf], [inf, 0.0]])
    )
    entropy = -(p[p > 0] * p[p > 0].log()).sum()
    value = transport_value(p, u.log(), cost, gamma(0.5))
    assert float(value) == pytest.approx(-0.5 * float(entropy), abs=1e-10)
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    with pytest.raises(ConvergenceError, match=r"error of 5\.0e-01 in a marginal after 50 steps"):
        transport_value(half, u.log(), cost[[0, 2]], gamma(1.0), max_steps=50)


def test_the_page_prints_what_becomes_the_area_between_distribution_functions(capsys: Any) -> None:
    names = run_blocks("docs/mathematics-transport.md")
    printed = capsys.readouterr().out
    assert f"```text\n{printed}```" in page("docs/mathematics-transport.md")
    positions = names["x"].numpy()
    area = wasserstein_distance(positions, positions, names["p"][0].numpy(), names["u"].numpy())
    assert area == pytest.approx(2.25)
    assert float(printed.split()[-1]) == pytest.approx(area, abs=2e-3)
