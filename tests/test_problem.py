"""The problem's objectives, and what it refuses."""

import pytest
import torch

from fenchel import Discrete, InferenceProblem, ProblemError
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


def test_an_estimate_without_gradients_is_not_given_to_who_wants_them() -> None:
    problem = random_problem()
    evidence = problem.evidence.clone().requires_grad_()
    wanting = InferenceProblem(problem.preference, evidence)
    with pytest.raises(
        ProblemError, match="evidence require gradients, which 'constrained' does not support"
    ):
        wanting.solve("constrained", radius=0.5)
    with torch.no_grad():
        assert not wanting.solve("exact").mean.requires_grad


def test_estimates_are_compared_by_identity_and_other_evidence_is_checked():
    problem = random_problem(m=3, d=2)
    one, other = problem.solve("first_order"), problem.solve("first_order")
    assert one == one
    assert one != other
    for evidence in (Z[:, :2] * torch.nan, Z):
        with pytest.raises(ProblemError, match="evidence"):
            problem.with_evidence(evidence)
    assert problem.with_evidence(Z[:, :2]).shape == (4,)
