"""Bounds hold against answers of 60 digits, whatever the sizes of parameters, evidence and α."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from fenchel import (
    Bernoulli,
    Box,
    DomainError,
    Gamma,
    Gaussian,
    GaussianMixture,
    InferenceProblem,
    Laplace,
    Poisson,
)
from fenchel.preference import AbstractPreference, AsymmetricLaplace

Mean = Callable[[Any], Any]
Drawn = tuple[AbstractPreference, Mean, tuple[Any, Any]]


class Draw:
    """Numbers of any size."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._random, self._dtype = random.Random(seed), dtype  # noqa: S311 -- numbers of any size

    def positive(self, low: float, high: float) -> Tensor:
        return torch.tensor([10 ** self._random.uniform(low, high)], dtype=self._dtype)

    def signed(self, low: float, high: float) -> Tensor:
        return self._random.gauss(0, 1) * self.positive(low, high)


def exact(number: Tensor) -> Any:
    return mpf(float(number))


def gaussian(draw: Draw) -> Drawn:
    mu, s = draw.signed(-3, 8), draw.positive(-8, 8)
    return Gaussian(mu, variance=s), lambda lam: exact(mu) + exact(s) * lam, (None, None)


def bernoulli(draw: Draw) -> Drawn:
    logit = draw.signed(-1, 2)
    return Bernoulli(logits=logit), lambda lam: 1 / (1 + mp.exp(-exact(logit) - lam)), (None, None)


def poisson(draw: Draw) -> Drawn:
    rate = draw.positive(-6, 6)
    return Poisson(rate), lambda lam: exact(rate) * mp.exp(lam), (None, None)


def gamma(draw: Draw) -> Drawn:
    a, rate = draw.positive(-3, 3), draw.positive(-3, 3)
    end = exact(rate) * (1 - mpf(10) ** -50)
    return Gamma(a, rate), lambda lam: exact(a) / (exact(rate) - lam), (None, end)


def laplace(draw: Draw) -> Drawn:
    location, scale = draw.signed(-2, 4), draw.positive(-3, 3)
    rate = 1 / exact(scale)
    end = rate * (1 - mpf(10) ** -50)

    def mean(lam: Any) -> Any:
        return exact(location) + 1 / (rate - lam) - 1 / (rate + lam)

    return Laplace(location, scale), mean, (-end, end)


def box(draw: Draw) -> Drawn:
    low = draw.signed(-2, 2)
    high = low + draw.positive(-1, 3)
    half, middle = (exact(high) - exact(low)) / 2, (exact(high) + exact(low)) / 2

    def mean(lam: Any) -> Any:
        x = half * lam
        return middle + half * (x / 3 if abs(x) < mpf(10) ** -18 else mp.coth(x) - 1 / x)

    return Box(low, high), mean, (None, None)


def mixture(draw: Draw) -> Drawn:
    means = torch.stack([draw.signed(-2, 3) for _ in range(3)])
    variances = torch.stack([draw.positive(-9, 4) for _ in range(3)])
    u = GaussianMixture(means, variances, draw.signed(0, 0.5).expand(3).cumsum(-1).log_softmax(-1))
    parts = [(exact(m), exact(s)) for m, s in zip(means, variances, strict=True)]
    weights = [mp.exp(exact(log)) for log in u.log_weights[0]]

    def mean(lam: Any) -> Any:
        exponents = [m * lam + s * lam * lam / 2 for m, s in parts]
        top = max(exponents)
        shares = [w * mp.exp(e - top) for w, e in zip(weights, exponents, strict=True)]
        return sum(r * (m + s * lam) for r, (m, s) in zip(shares, parts, strict=True)) / sum(shares)

    return u, mean, (None, None)


def solved(mean: Mean, z: Any, alpha: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """The root of μ + z - λ/α - h(λ), which falls, and its mean."""
    start = mean(mpf(0)) + z

    def gradient(lam: Any) -> Any:
        return start - lam / alpha - mean(lam)

    low, high = (
        (-mpf(1) / 1000 if ends[0] is None else ends[0]),
        (mpf(1) / 1000 if ends[1] is None else ends[1]),
    )
    while ends[0] is None and gradient(low) < 0:
        low *= 4
    while ends[1] is None and gradient(high) > 0:
        high *= 4
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (middle, high) if gradient(middle) > 0 else (low, middle)
    return low, mean(low)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [gaussian, bernoulli, poisson, gamma, laplace, box, mixture])
def test_bounds_hold_at_any_size(make: Callable[[Draw], Drawn], dtype: torch.dtype) -> None:
    with mp.workdps(60):
        for seed in range(20):
            draw = Draw(seed, dtype)
            u, mean, ends = make(draw)
            z, alpha = draw.signed(-6, 4), draw.positive(-4, 4)
            dual, answer = solved(mean, exact(z), exact(alpha), ends)
            problem = InferenceProblem(u, z.unsqueeze(0), alpha)
            for estimator in ("exact", "first_order", "second_order"):
                try:
                    found = problem.solve(estimator, **({"throw": False} if estimator == "exact" else {}))
                except DomainError:
                    assert estimator != "exact"
                    continue
                assert abs(exact(found.dual) - dual) <= exact(found.dual_error) * (1 + mpf(10) ** -12)
                assert abs(exact(found.mean) - answer) <= exact(found.mean_error) * (1 + mpf(10) ** -12)
                assert math.isfinite(float(found.gap))


def test_means_that_cancel_are_off_by_more_than_their_own_roundings() -> None:
    """Terms of a million that add up to nearly nothing: the bound knows the terms."""
    still = torch.zeros(1, 1, dtype=torch.float64)
    with mp.workdps(60):
        for seed in range(20):
            draw = Draw(seed, torch.float64)
            log_weights = draw.signed(0, 0.1).expand(3).cumsum(-1).log_softmax(-1)
            w = [mp.exp(exact(log)) for log in log_weights]
            first, second = draw.positive(6, 7), -draw.positive(6, 7)
            third = float(-(w[0] * exact(first) + w[1] * exact(second)) / w[2])
            means = torch.stack([first, second, torch.full_like(first, third)])
            u = GaussianMixture(means, 1e-9, log_weights)
            found = InferenceProblem(u, still).solve("first_order")
            true = sum(a * exact(m) for a, m in zip(w, means, strict=True)) / sum(w)
            assert abs(exact(found.mean) - true) <= exact(found.mean_error)
            left = draw.positive(-7, -6)
            right = left * (1 + 1e-9)
            found = InferenceProblem(AsymmetricLaplace(torch.zeros_like(left), left, right), still).solve(
                "first_order"
            )
            assert abs(exact(found.mean) - (1 / exact(right) - 1 / exact(left))) <= exact(found.mean_error)


def test_gradients_on_the_border_are_refused() -> None:
    """In float32 a dual point that is certified in float64 may land where log M is infinite."""
    rate = torch.ones(1, requires_grad=True)
    problem = InferenceProblem(Gamma(1.0, rate), torch.full((1, 1), 1e9), 1e-8)
    with torch.no_grad():
        found = problem.solve("exact", tol=1e-3)
    assert bool(found.converged.all())
    assert float(found.dual) == 1.0
    with pytest.raises(DomainError, match=r"there is no such distribution; .* or float64"):
        _ = found.distribution
    with pytest.raises(
        DomainError, match=r"rounding to torch\.float32 puts .* 1 of 1 queries .* give .* in float64"
    ):
        problem.solve("exact", tol=1e-3)
    wide = torch.ones(1, dtype=torch.float64, requires_grad=True)
    z = torch.full((1, 1), 1e9, dtype=torch.float64)
    InferenceProblem(Gamma(1.0, wide), z, 1e-8).solve("exact", tol=1e-3).dual.sum().backward()
    assert wide.grad is not None
    assert float(wide.grad) == pytest.approx(1, rel=1e-3)
