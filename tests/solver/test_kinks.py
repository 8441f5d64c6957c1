"""Exact answers where the dual's gradient has kinks: all converge, however many of them Newton's method meets."""

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem, Tsallis


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("relative", ["bregman", "csiszar"])
@pytest.mark.parametrize(("scale", "length"), [(10, 1), (10, 10), (100, 100)])
def test_all_of_100_problems_with_long_templates_converge(
    dtype: torch.dtype, relative: str, scale: float, length: float
) -> None:
    templates, evidence = scale * normal(100, 9, 16, seed=7), length * normal(100, 1, 16, seed=8)
    problem = InferenceProblem(
        Discrete(templates.to(dtype)), evidence.to(dtype), closeness=Tsallis(2, relative=relative)
    )
    assert bool(problem.solve("exact").converged.all())
