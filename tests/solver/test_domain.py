"""Preferences whose log M is finite on part of the space, written outside of the library."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fenchel import DomainError, InferenceProblem, ProblemError
from fenchel.preference import Tilted
from tests.conformance.toys import Exponential

MEANS = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)


def problem(size: float, alpha: float = 1.0) -> InferenceProblem:
    z = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).abs()
    return InferenceProblem(Exponential(MEANS), size * z, alpha)


def inside(found: Tensor) -> bool:
    return bool((found < 1 / MEANS).all())


@pytest.mark.parametrize("size", [0.01, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("estimator", ["exact", "gradient_ascent"])
def test_iterative_answers_are_inside(size: float, estimator: str) -> None:
    """The equation of a stationary point has a second root outside, where formulas go on."""
    found = problem(size).solve(
        estimator,
        tol=1e-6 if estimator == "exact" else 1e-4,
        max_steps=50 if estimator == "exact" else 2000,
        throw=False,
    )
    if estimator == "exact":
        assert bool(found.converged.all())
    assert inside(found.dual)
    assert bool((found.mean > 0).all())
    # Coordinate by coordinate: s/(1 - s lam) = s + z - lam/alpha.
    z, c = problem(size).evidence, MEANS + problem(size).evidence + 1 / MEANS
    expected = (c - (c.square() - 4 * z / MEANS).sqrt()) / 2
    if estimator == "exact":
        torch.testing.assert_close(found.dual, expected, rtol=1e-4, atol=1e-6)


def test_outside_is_infinite_and_nowhere_certified() -> None:
    conjugate = problem(1.0).conjugate
    lam = torch.tensor([[0.5, 1.0, 0.1], [1.5, 3.0, 0.6]], dtype=torch.float64)
    assert torch.isfinite(conjugate.value(lam)).tolist() == [True, False]
    assert torch.isfinite(conjugate.mean(lam)).all(-1).tolist() == [True, False]
    assert float(conjugate.value(lam)[1]) == torch.inf
    assert bool(torch.isnan(conjugate.shift(lam)[1]).all())


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_closed_forms_outside_name_the_largest_alpha(estimator: str) -> None:
    with pytest.raises(DomainError, match="Exponential preference is infinite") as caught:
        problem(5.0, 3.0).solve(estimator)
    assert caught.value.query is not None
    assert caught.value.largest_alpha is not None
    z = problem(5.0).evidence[caught.value.query]
    alpha = torch.tensor(caught.value.largest_alpha, dtype=torch.float64)
    bent = alpha * z if estimator == "first_order" else alpha * z / (1 + alpha * MEANS.square())
    room = (bent * MEANS).max()
    assert 1 - 1e-4 < float(room) < 1


def test_a_family_without_a_tilt_of_its_own_has_one() -> None:
    found = problem(0.3).solve("exact", tol=1e-9)
    inferred = found.distribution
    assert isinstance(inferred, Tilted)
    torch.testing.assert_close(inferred.mean(), found.mean)
    lam = 0.1 * found.dual
    torch.testing.assert_close(
        inferred.log_mgf(lam),
        Exponential(MEANS).log_mgf(found.dual + lam) - Exponential(MEANS).log_mgf(found.dual),
    )
    with pytest.raises(ProblemError, match="the log density of Exponential is not known"):
        inferred.log_density(found.mean)
    with pytest.raises(ProblemError, match=r"Exponential, tilted, cannot be sampled from.*method tilted"):
        inferred.sample()


def test_a_closed_form_of_ones_own_takes_the_place_of_conjugate_gradients() -> None:
    asked: list[int] = []

    class Closed(Exponential):
        def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor:
            asked.append(1)
            return vector / (1 + alpha * (self.means / (1 - lam * self.means)).square())

        def to(self, dtype: torch.dtype) -> Closed:
            return Closed(self.means.to(dtype))

    for estimator in ("second_order", "exact"):
        plain = problem(0.1)
        closed = InferenceProblem(Closed(MEANS), plain.evidence, plain.alpha)
        torch.testing.assert_close(
            closed.solve(estimator).dual, plain.solve(estimator).dual, rtol=1e-5, atol=1e-7
        )
        assert asked
        asked.clear()
    z = plain.evidence.clone().requires_grad_()
    (found,) = torch.autograd.grad(InferenceProblem(Closed(MEANS), z).solve("exact", tol=1e-10).dual.sum(), z)
    (expected,) = torch.autograd.grad(
        InferenceProblem(Exponential(MEANS), z).solve("exact", tol=1e-10).dual.sum(), z
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
