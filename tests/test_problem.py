"""The problem's objectives, and what it refuses."""

import pytest
import torch

from fenchel import Discrete, InferenceProblem
from tests.problems import random_problem

T = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Z = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_objectives_are_the_formulas_written_out() -> None:
    log_u = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1], dtype=torch.float64).log()
    problem = InferenceProblem(Discrete(T, log_u), Z, 1.7)
    u, p = log_u.exp(), torch.full((4, 6), 1 / 6, dtype=torch.float64)
    mu = u @ T
    primal = 1.7 / 2 * (mu + Z - p @ T).square().sum(-1) + (p * (p / u).log()).sum(-1)
    torch.testing.assert_close(problem.primal(p), primal)
    lam = Z * 0.3
    cumulant = (u * (lam @ T.T).exp()).sum(-1).log()
    dual = (lam * (mu + Z)).sum(-1) - lam.square().sum(-1) / (2 * 1.7) - cumulant
    torch.testing.assert_close(problem.dual(lam), dual)


def test_the_primal_is_infinite_outside_the_support() -> None:
    mask = torch.tensor([True, True, True, True, True, False])
    problem = InferenceProblem(Discrete(T, mask), Z)
    assert bool(torch.isinf(problem.primal(torch.full((4, 6), 1 / 6, dtype=torch.float64))).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32_and_say_so(dtype: torch.dtype) -> None:
    problem = InferenceProblem(Discrete(T.to(dtype)), Z.to(dtype))
    estimate = problem.solve("exact", tol=1e-5)
    assert problem.dtype == estimate.mean.dtype == torch.float32
    assert f"computed in torch.float32 (given {dtype})" in repr(problem)


def test_the_same_problem_in_another_dtype() -> None:
    problem = random_problem(dtype=torch.float32)
    assert problem.to(torch.float32) is problem
    wide = problem.to(torch.float64)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.dual(wide.evidence).float(), problem.dual(problem.evidence))
