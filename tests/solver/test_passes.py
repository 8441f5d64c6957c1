"""Passes of fused attention against weights that are written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel.blocks import QueryBlock
from fenchel.closeness.response import covariance
from fenchel.selection import select
from fenchel.solver.passes import PassResponse
from fenchel.solver.staged import solve_rows

PREFERENCES = ["uniform", "shared", "masked", "a preference a query", "causal"]


def log_preference(name: str, g: int, r: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(g, r, n, generator=generator, dtype=torch.float64)
    if name == "uniform":
        weights = torch.zeros(1, 1, n, dtype=torch.float64)
    if name == "shared":
        weights = weights[:, :1]
    if name == "masked":
        weights = weights.masked_fill(weights > 1, -torch.inf)
    if name == "causal":
        weights = torch.zeros(1, r, n, dtype=torch.float64)
        weights = weights.masked_fill(~torch.ones(r, n).tril(n - r).bool(), -torch.inf)
    return weights.log_softmax(-1)


def rows(name: str, *, alpha: float = 0.7) -> QueryBlock:
    g, r, n, d = 3, 5, 13, 4
    generator = torch.Generator().manual_seed(1)
    templates = torch.randn(g, n, d, generator=generator, dtype=torch.float64)
    evidence = 2 * torch.randn(g, r, d, generator=generator, dtype=torch.float64)
    alphas = torch.full((1, 1, 1), alpha, dtype=torch.float64)
    return QueryBlock(templates, log_preference(name, g, r, n), evidence, alphas)


def dense(block: QueryBlock, dual: Tensor) -> Tensor:
    return (dual @ block.offsets.mT + block.log_preference).softmax(-1)


@pytest.mark.parametrize("name", PREFERENCES)
def test_means_weights_and_curvature_are_those_of_the_weights(name: str) -> None:
    block = rows(name)
    response = PassResponse.to_preference(block.offsets, block.log_preference)
    dual, vector = block.evidence, block.evidence.flip(-1)
    weights = dense(block, dual)
    torch.testing.assert_close(response.weights(dual), weights, rtol=1e-12, atol=1e-14)
    mean = weights @ block.offsets
    torch.testing.assert_close(response.at(dual), mean, rtol=1e-12, atol=1e-13)
    at_rest = block.log_preference.exp() @ block.offsets
    torch.testing.assert_close(response.rest, at_rest.expand_as(response.rest), rtol=1e-12, atol=1e-13)
    product = response.curvature(dual, mean)(vector)
    expected = (covariance(block.offsets, weights) @ vector.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(product, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PREFERENCES)
def test_some_rows_are_those_of_all(name: str) -> None:
    block = rows(name)
    response = PassResponse.to_preference(block.offsets, block.log_preference)
    index = torch.tensor([[3, 0], [1, 4], [2, 3]])
    chosen = block.evidence.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
    expected = response.at(block.evidence).gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
    torch.testing.assert_close(select(response, index).at(chosen), expected, rtol=1e-12, atol=1e-13)


def test_no_potential_moves_by_more_than_what_is_said() -> None:
    block = rows("uniform")
    response = PassResponse.to_preference(block.offsets, block.log_preference)
    potentials = block.evidence @ block.offsets.mT
    assert bool(
        (potentials.amax(-1) - potentials.amin(-1) <= response.log_curvature_range(block.evidence)).all()
    )


@pytest.mark.parametrize("name", PREFERENCES)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("alpha", [0.7, 40.0])
def test_rows_are_solved_to_what_the_problem_says(
    name: str, dtype: torch.dtype, tol: float, alpha: float
) -> None:
    block = rows(name, alpha=alpha).to(dtype)
    found = solve_rows(block, tol=tol, max_steps=50)
    assert bool((found.error <= tol).all())
    wide = block.to(torch.float64)
    for group in range(3):
        row_weights = wide.log_preference[group if len(wide.log_preference) > 1 else 0]
        problem = InferenceProblem(
            Discrete(wide.templates[group], row_weights.expand(5, -1)), wide.evidence[group], alpha
        )
        truth = problem.solve("exact", tol=1e-11).dual
        apart = (found.dual[group].double() - truth).norm(dim=-1)
        assert bool((apart <= (1.01 * tol + 1e-7 * (dtype == torch.float32)) * truth.norm(dim=-1)).all())
