"""Costs: their matrices, their kernels, and what is refused."""

import warnings

import pytest
import torch

from fenchel.closeness.optimal_transport import COSTS, GivenCost, cost_named, warn_if_moving_is_cheaper
from fenchel.errors import CostWarning, ProblemError

torch.manual_seed(0)
SOURCES = torch.randn(2, 4, 3, dtype=torch.float64)
TEMPLATES = torch.cat([SOURCES, torch.randn(2, 5, 3, dtype=torch.float64)], -2)


def given() -> torch.Tensor:
    matrix = torch.rand(9, 9, dtype=torch.float64)
    return matrix + matrix.mT


def written_out(name: str, a: torch.Tensor, b: torch.Tensor, bound: float) -> float:
    if name == "dot":
        return bound - float(a @ b)
    if name == "squared_euclidean":
        return float((a - b).square().sum())
    return 1 - float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("name", COSTS)
def test_the_matrix_entry_by_entry(name: str) -> None:
    matrix = COSTS[name].matrix(TEMPLATES, SOURCES)
    assert matrix.shape == (2, 9, 4)
    assert bool((matrix >= 0).all())
    for g in range(2):
        bound = float(TEMPLATES[g].square().sum(-1).max())
        for t in range(9):
            for i in range(4):
                expected = written_out(name, TEMPLATES[g, t], SOURCES[g, i], bound)
                assert float(matrix[g, t, i]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", [*COSTS, "given"])
def test_the_kernel_is_the_matrix_up_to_a_constant_of_each_source(name: str) -> None:
    cost = GivenCost(given()) if name == "given" else COSTS[name]
    parts = [cost.log_kernel(TEMPLATES, SOURCES, 0.3, span) for span in (slice(0, 2), slice(2, 9))]
    difference = torch.cat(parts, -2) + cost.matrix(TEMPLATES, SOURCES) / 0.3
    torch.testing.assert_close(difference, difference[..., :1, :].expand_as(difference), atol=1e-11, rtol=0)


def test_a_template_of_norm_zero_is_at_cost_one_from_all() -> None:
    templates = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-2.0, 0.0]])
    matrix = COSTS["cosine"].matrix(templates, templates)
    torch.testing.assert_close(matrix, torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]))


def test_distances_of_templates_far_from_the_origin_keep_their_digits() -> None:
    far = torch.tensor([[1e4, 0.0], [1e4 + 0.5, 0.0]])
    torch.testing.assert_close(
        COSTS["squared_euclidean"].matrix(far, far), torch.tensor([[0.0, 0.25], [0.25, 0.0]])
    )


def test_other_things_that_are_no_costs() -> None:
    with pytest.raises(ProblemError, match=r"shape \(2, 3\); expected a square matrix"):
        GivenCost(torch.zeros(2, 3))
    with pytest.raises(ProblemError, match=r"dtype torch.int64"):
        GivenCost(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(
        ProblemError, match="cost is 'euclid'; expected one of 'dot', 'squared_euclidean', 'cosine'"
    ):
        cost_named("euclid")
    with pytest.raises(
        ProblemError, match=r"cost is \(9, 9\), but there are 8 templates \(4 of the preference and 4 atoms\)"
    ):
        GivenCost(given()).matrix(TEMPLATES[..., :8, :], SOURCES)


def test_moving_that_is_cheaper_than_staying_is_warned_of() -> None:
    lengths = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    with pytest.warns(CostWarning, match="'dot', 1 of 3 templates are nearer to another"):
        assert warn_if_moving_is_cheaper(COSTS["dot"].matrix(lengths, lengths), "dot")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in COSTS:
            equal = torch.nn.functional.normalize(SOURCES, dim=-1)
            assert not warn_if_moving_is_cheaper(COSTS[name].matrix(equal, equal), name)
        repeated = SOURCES.repeat(1, 2, 1)
        assert not warn_if_moving_is_cheaper(
            COSTS["squared_euclidean"].matrix(repeated, repeated), "squared_euclidean"
        )
