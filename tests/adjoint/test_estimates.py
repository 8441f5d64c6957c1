"""Gradients of estimates, against finite differences and through closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, Estimate, InferenceProblem, ProblemError

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]] = [
    ((7, 3), (5, 3), None, ()),
    ((2, 1, 7, 3), (2, 3, 5, 3), (7,), ()),
    ((2, 1, 7, 3), (1, 3, 5, 3), (5, 7), (3, 1)),
    ((7, 3), (4, 5, 3), (4, 5, 7), (4, 5)),
    ((2, 3, 4, 9), (2, 3, 5, 9), (2, 1, 1, 4), (1, 3, 5)),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "first_order": {},
    "second_order": {},
    "exact": {"tol": 1e-12},
    "gradient_ascent": {"tol": 1e-8, "max_steps": 100_000},
}


def estimate_of(parts: dict[str, Tensor], estimator: str) -> Estimate:
    preference = Discrete(parts["templates"], parts.get("log_weights"))
    problem = InferenceProblem(preference, parts["evidence"], parts["alpha"])
    return problem.solve(estimator, **OPTIONS[estimator])


def functional_of(parts: dict[str, Tensor], estimator: str) -> Tensor:
    """Something that every differentiable part of an estimate enters."""
    found = estimate_of(parts, estimator)
    return found.mean.sin().sum() + found.dual.cos().sum() + found.weights.square().sum()


def data(shapes: Any, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    templates, evidence, log_weights, alpha = shapes

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    parts = {"templates": normal(templates), "evidence": normal(evidence)}
    parts["alpha"] = torch.rand(alpha, dtype=torch.float64, generator=generator) + 0.5
    if log_weights is not None:
        parts["log_weights"] = normal(log_weights)
    return parts


def directional_error(parts: dict[str, Tensor], gradients: dict[str, Tensor], estimator: str) -> float:
    """Largest relative difference from a central difference, each part moved along a random direction by itself."""
    worst, step = 0.0, 1e-5
    for name, part in parts.items():
        direction = torch.randn(
            part.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(name))
        )
        sides = [
            functional_of({**parts, name: part + side * step * direction}, estimator) for side in (1, -1)
        ]
        numeric = float(sides[0] - sides[1]) / (2 * step)
        analytic = float((gradients[name] * direction).sum())
        worst = max(worst, abs(numeric - analytic) / max(abs(numeric), 1e-2))
    return worst


def gradients_of(parts: dict[str, Tensor], estimator: str) -> dict[str, Tensor]:
    wanted = {name: part.clone().requires_grad_() for name, part in parts.items()}
    found = torch.autograd.grad(functional_of(wanted, estimator), tuple(wanted.values()))
    return dict(zip(wanted, found, strict=True))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_gradients_of_everything_agree_with_finite_differences(estimator: str, shapes: Any) -> None:
    parts = data(shapes)
    assert directional_error(parts, gradients_of(parts, estimator), estimator) < 1e-5


def test_who_ascends_to_the_solution_has_its_gradients() -> None:
    parts = data(SHAPES[2])
    ascended, exact = (gradients_of(parts, estimator) for estimator in ("gradient_ascent", "exact"))
    for name, gradient in exact.items():
        torch.testing.assert_close(ascended[name], gradient, rtol=1e-6, atol=1e-6)


def test_a_wrong_gradient_is_caught() -> None:
    parts = data(SHAPES[1])
    gradients = gradients_of(parts, "exact")
    gradients["evidence"] = gradients_of(parts, "first_order")["evidence"]
    assert directional_error(parts, gradients, "exact") > 1e-3


@pytest.mark.parametrize("estimator", OPTIONS)
def test_asking_for_gradients_changes_no_number(estimator: str) -> None:
    parts = data(SHAPES[2])
    wanting = estimate_of({name: part.clone().requires_grad_() for name, part in parts.items()}, estimator)
    plain = estimate_of(parts, estimator)
    assert wanting.dual.requires_grad
    assert not wanting.gap.requires_grad
    for name in ("mean", "weights", "dual", "gap", "mean_error", "dual_error"):
        torch.testing.assert_close(getattr(wanting, name), getattr(plain, name), rtol=1e-12, atol=1e-12)


def test_rows_that_conjugate_gradients_cannot_solve_are_factorised() -> None:
    # With eigenvalues over ten orders of magnitude, conjugate gradients are far from done where they stop.
    parts = data(((40, 30), (3, 30), None, ()))
    spread = torch.logspace(0, 5, 30, dtype=torch.float64)
    parts["templates"] = parts["templates"] * spread
    parts["evidence"] = parts["evidence"] / spread
    parts["alpha"] = torch.tensor(1e-2, dtype=torch.float64)
    wanted = parts["evidence"].clone().requires_grad_()
    dual = estimate_of({**parts, "evidence": wanted}, "second_order").dual
    (found,) = torch.autograd.grad(dual.sum(), wanted)
    covariance = Discrete(parts["templates"]).covariance()
    matrix = torch.eye(30, dtype=torch.float64) / parts["alpha"] + covariance
    expected = torch.linalg.solve(matrix, torch.ones(30, 1, dtype=torch.float64)).squeeze(-1)
    assert float(((found - expected) * spread).norm() / (expected * spread).norm()) < 1e-5


@pytest.mark.parametrize("estimator", ["second_order", "exact"])
def test_a_second_derivative_is_refused_by_name(estimator: str) -> None:
    parts = data(SHAPES[0])
    evidence = parts["evidence"].requires_grad_()
    dual = estimate_of(parts, estimator).dual
    (first,) = torch.autograd.grad(dual.sum(), evidence, create_graph=True)
    with pytest.raises(ProblemError, match="second derivative of an estimate"):
        first.sum().backward()
