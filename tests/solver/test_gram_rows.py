"""Rows over fewer templates than dimensions, solved with their Gram matrix: the same as by passes and by problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem
from fenchel import functional as F
from fenchel.blocks import QueryBlock
from fenchel.solver import staged
from fenchel.solver.staged import solve_rows
from tests.solver.test_passes import PREFERENCES, log_preference

SHAPE = g, r, n, d = 3, 5, 7, 12


def rows(name: str = "shared", *, alpha: float = 0.7, templates: float = 1.0) -> QueryBlock:
    generator = torch.Generator().manual_seed(4)
    points = templates * torch.randn(g, n, d, generator=generator, dtype=torch.float64)
    evidence = 2 * torch.randn(g, r, d, generator=generator, dtype=torch.float64)
    alphas = torch.full((1, 1, 1), alpha, dtype=torch.float64)
    return QueryBlock(points, log_preference(name, g, r, n), evidence, alphas)


def truth(block: QueryBlock) -> Tensor:
    """Each group as a problem of its own."""
    wide = block.to(torch.float64)
    found = []
    for group in range(g):
        weights = wide.log_preference[group if len(wide.log_preference) > 1 else 0].expand(r, -1)
        problem = InferenceProblem(
            Discrete(wide.templates[group], weights), wide.evidence[group], float(wide.alpha)
        )
        found.append(problem.solve("exact", tol=1e-11).dual)
    return torch.stack(found)


def apart(found: Tensor, other: Tensor) -> float:
    return float(((found.double() - other).norm(dim=-1) / other.norm(dim=-1)).max())


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How blocks were solved."""
    taken: list[str] = []

    def spy_on(name: str) -> None:
        way = getattr(staged, name)

        def spied(*arguments: Any) -> Any:
            taken.append(name)
            return way(*arguments)

        monkeypatch.setattr(staged, name, spied)

    spy_on("_with_gram_matrix")
    spy_on("_by_passes")
    return taken


@pytest.mark.parametrize("name", PREFERENCES)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("alpha", [0.7, 40.0])
def test_rows_are_solved_to_what_problem_and_passes_say(
    ways: list[str], monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, tol: float, alpha: float
) -> None:
    block = rows(name, alpha=alpha).to(dtype)
    found = solve_rows(block, tol=tol, max_steps=50)
    assert ways == ["_with_gram_matrix"]
    assert bool((found.error <= tol).all())
    rounding = 1e-6 * (dtype == torch.float32)
    assert apart(found.dual, truth(block)) <= 1.01 * tol + rounding
    monkeypatch.setattr(staged, "_gram_pays", lambda *_: False)
    passes = solve_rows(block, tol=tol, max_steps=50)
    assert ways[-1] == "_by_passes"
    assert apart(found.dual, passes.dual.double()) <= 2.01 * tol + rounding


@pytest.mark.parametrize(
    ("shape", "queries", "dtype", "tol", "expected"),
    [
        ((250, 20, 128), 20, torch.float32, 1e-5, True),
        ((250, 20, 128), 20, torch.float64, 1e-10, True),
        ((250, 20, 128), 20, torch.float32, 1e-7, False),  # more than its certificate can say
        ((250, 49, 128), 1, torch.float32, 1e-5, False),  # a matrix of 49 rows for one query
        ((8, 256, 64), 256, torch.float32, 1e-5, False),  # more templates than dimensions
    ],
)
def test_the_gram_matrix_is_for_few_templates_and_many_queries(shape, queries, dtype, tol, expected) -> None:
    assert staged._gram_pays(torch.Size(shape), queries, dtype, tol) is expected


def test_what_gram_coordinates_lose_is_refined(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence in the span of long templates, and a large α: λ is a millionth of αz, from which they subtract."""
    block = rows(alpha=1e2, templates=1e2)
    generator = torch.Generator().manual_seed(6)
    within = 0.02 * torch.randn(g, r, n, generator=generator, dtype=torch.float64) @ block.offsets
    block = replace(block, evidence=within).to(torch.float32)
    found = solve_rows(block, tol=1e-5, max_steps=50)
    assert ways == ["_with_gram_matrix"]
    assert bool((found.error <= 1e-5).all())
    monkeypatch.setattr(staged, "_gram_pays", lambda *_: False)
    expected = solve_rows(block.to(torch.float64), tol=1e-6, max_steps=50)
    assert bool((expected.error <= 1e-6).all())
    assert float((expected.dual.norm(dim=-1) / (1e2 * within.norm(dim=-1))).max()) < 1e-5
    assert apart(found.dual, expected.dual) <= 1.3e-5


def test_without_evidence_nothing_is_inferred(ways: list[str]) -> None:
    block = rows()
    block.evidence[:, 2] = 0
    found = solve_rows(block, tol=1e-10, max_steps=50)
    assert ways == ["_with_gram_matrix"]
    assert bool((found.dual[:, 2] == 0).all())
    assert bool((found.error[:, 2] == 0).all())


def test_values_and_gradients_are_those_of_the_formulas(ways: list[str]) -> None:
    generator = torch.Generator().manual_seed(5)
    shapes = {
        "query": (2, 2, 4, 9),
        "key": (2, 2, 6, 9),
        "value": (2, 2, 6, 3),
        "log_preference": (1, 2, 1, 6),
    }
    given = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for name, shape in shapes.items()
    }
    probe = torch.randn(2, 2, 4, 3, generator=generator, dtype=torch.float64)

    def gradients(attend) -> tuple[Tensor, ...]:
        output = attend(**given, estimator="exact", alpha=3.0)
        return (output.detach(), *torch.autograd.grad((output * probe).sum(), list(given.values())))

    for fast, slow in zip(gradients(F.attention), gradients(F.reference.attention), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-7, atol=1e-8)
    assert set(ways) == {"_with_gram_matrix"}
