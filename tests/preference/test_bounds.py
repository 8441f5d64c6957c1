"""Bounds hold against answers of many digits, whatever the sizes of parameters, evidence and α, up to the domain."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from fenchel import (
    Bernoulli,
    Box,
    Discrete,
    DomainError,
    Gamma,
    Gaussian,
    GaussianMixture,
    InferenceProblem,
    Laplace,
    Poisson,
)
from fenchel.preference import AbstractPreference, AsymmetricLaplace, TruncatedExponential
from fenchel.preference.independent import AbstractProduct
from tests.normal import drawn

Law = Callable[[Any], tuple[Any, Any, Any, Any]]
"""Of λ: cumulant, mean, the mean at rest with a minus, and variance, with as many digits as are asked for."""


def exact(number: Tensor) -> Any:
    return mpf(float(number))


def normal(mean: Any, variance: Any) -> Law:
    m, s = mpf(mean), mpf(variance)
    return lambda x: (m * x + s * x**2 / 2, m + s * x, -m, s)


def coin(logit: Any) -> Law:
    def law(x: Any) -> Any:
        odds, tilted = mp.exp(mpf(logit)), mp.exp(mpf(logit) + x)
        mean = tilted / (1 + tilted)
        return mp.log((1 + tilted) / (1 + odds)), mean, -odds / (1 + odds), tilted / (1 + tilted) ** 2

    return law


def counts(rate: Any) -> Law:
    r = mpf(rate)
    return lambda x: (r * mp.expm1(x), r * mp.exp(x), -r, r * mp.exp(x))


def waiting(a: Any, rate: Any) -> Law:
    b = mpf(rate)
    return lambda x: (-a * mp.log1p(-x / b), a / (b - x), -a / b, a / (b - x) ** 2)


def two_sided(location: Any, left: Any, right: Any) -> Law:
    def law(x: Any) -> Any:
        one, other, a, b = mpf(left) + x, mpf(right) - x, mpf(left), mpf(right)
        value = mpf(location) * x - mp.log(one / a) - mp.log(other / b)
        return value, mpf(location) + 1 / other - 1 / one, 1 / a - 1 / b - mpf(location), other**-2 + one**-2

    return law


def between(low: Any, high: Any, theta: Any) -> Law:
    half, middle = (mpf(high) - mpf(low)) / 2, (mpf(low) + mpf(high)) / 2

    def at(y: Any) -> tuple[Any, Any, Any]:
        """Log of sinh y/y, and its derivatives."""
        size = abs(y)
        if size < mpf(10) ** -40:
            return y**2 / 6, y / 3, mpf(1) / 3
        falling = mp.exp(-2 * size)
        value = size + mp.log((1 - falling) / (2 * size))
        slope = (1 + falling) / (1 - falling) - 1 / size
        return value, mp.sign(y) * slope, 1 / size**2 - 4 * falling / (1 - falling) ** 2

    def law(x: Any) -> Any:
        (value, first, second), start = at(half * (mpf(theta) + x)), at(half * mpf(theta))
        rest = middle + half * start[1]
        return middle * x + value - start[0], middle + half * first, -rest, half**2 * second

    return law


def components(means: Sequence[Any], variances: Sequence[Any], weights: Sequence[Any]) -> Law:
    parts = [(mpf(m), mpf(s), mpf(w)) for m, s, w in zip(means, variances, weights, strict=True)]

    def law(x: Any) -> Any:
        masses = [w * mp.exp(m * x + s * x**2 / 2) for m, s, w in parts]
        total, whole = sum(masses), sum(w for _, _, w in parts)
        mean = sum(r * (m + s * x) for r, (m, s, _) in zip(masses, parts, strict=True)) / total
        second = sum(r * (s + (m + s * x - mean) ** 2) for r, (m, s, _) in zip(masses, parts, strict=True))
        return mp.log(total / whole), mean, -sum(w * m for m, _, w in parts) / whole, second / total

    return law


Drawn = tuple[AbstractPreference, Law, tuple[Any, Any]]
"""A preference, its law, and the ends of the interval in which λ may lie."""


class Draw:
    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._random, self._dtype = random.Random(seed), dtype  # noqa: S311 -- numbers of any size

    def positive(self, low: float, high: float) -> Tensor:
        return torch.tensor([10 ** self._random.uniform(low, high)], dtype=self._dtype)

    def signed(self, low: float, high: float) -> Tensor:
        return self._random.gauss(0, 1) * self.positive(low, high)


def gaussian(draw: Draw) -> Drawn:
    mean, variance = draw.signed(-3, 8), draw.positive(-8, 8)
    return Gaussian(mean, variance=variance), normal(exact(mean), exact(variance)), (None, None)


def bernoulli(draw: Draw) -> Drawn:
    logit = draw.signed(-1, 2)
    return Bernoulli(logits=logit), coin(exact(logit)), (None, None)


def poisson(draw: Draw) -> Drawn:
    rate = draw.positive(-6, 6)
    return Poisson(rate), counts(exact(rate)), (None, None)


def gamma(draw: Draw) -> Drawn:
    a, rate = draw.positive(-3, 3), draw.positive(-3, 3)
    return Gamma(a, rate), waiting(exact(a), exact(rate)), (None, exact(rate) * (1 - mpf(10) ** -50))


def laplace(draw: Draw) -> Drawn:
    location, scale = draw.signed(-2, 4), draw.positive(-3, 3)
    rate = 1 / exact(scale)
    end = rate * (1 - mpf(10) ** -50)
    return Laplace(location, scale), two_sided(exact(location), rate, rate), (-end, end)


def box(draw: Draw) -> Drawn:
    low = draw.signed(-2, 2)
    high = low + draw.positive(-1, 3)
    return Box(low, high), between(exact(low), exact(high), 0), (None, None)


def mixture(draw: Draw) -> Drawn:
    means = torch.stack([draw.signed(-2, 3) for _ in range(3)])
    variances = torch.stack([draw.positive(-9, 4) for _ in range(3)])
    logits = draw.signed(0, 0.5).expand(3).cumsum(-1)
    given = logits.double().log_softmax(-1).to(logits.dtype)  # normalised to rounding only
    u, weights = GaussianMixture(means, variances, given), [mp.exp(exact(log)) for log in given]
    return u, components([*map(exact, means)], [*map(exact, variances)], weights), (None, None)


def solved(law: Law, z: Any, alpha: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """The root of μ + z - λ/α - h(λ), which falls, and its mean."""
    start = law(mpf(0))[1] + z

    def gradient(lam: Any) -> Any:
        return start - lam / alpha - law(lam)[1]

    low, high = (
        sign * mpf(1) / 1000 if end is None else end for sign, end in zip((-1, 1), ends, strict=True)
    )
    while ends[0] is None and gradient(low) < 0:
        low *= 4
    while ends[1] is None and gradient(high) > 0:
        high *= 4
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (middle, high) if gradient(middle) > 0 else (low, middle)
    return low, law(low)[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [gaussian, bernoulli, poisson, gamma, laplace, box, mixture])
def test_bounds_hold_at_any_size(make: Callable[[Draw], Drawn], dtype: torch.dtype) -> None:
    with mp.workdps(120):
        for seed in range(8):
            draw = Draw(seed, dtype)
            u, law, ends = make(draw)
            z, alpha = draw.signed(-6, 4), draw.positive(-4, 4)
            dual, answer = solved(law, exact(z), exact(alpha), ends)
            problem = InferenceProblem(u, z.unsqueeze(0), alpha)
            for estimator in ("exact", "first_order", "second_order"):
                try:
                    found = problem.solve(estimator, **({"throw": False} if estimator == "exact" else {}))
                except DomainError:
                    assert estimator != "exact"
                    continue
                assert abs(exact(found.dual) - dual) <= exact(found.dual_error) * (1 + mpf(10) ** -12)
                assert abs(exact(found.mean) - answer) <= exact(found.mean_error) * (1 + mpf(10) ** -12)
                slope, lam = exact(z) + law(mpf(0))[1] - law(exact(found.dual))[1], exact(found.dual)
                gap = exact(alpha) * (slope - lam / exact(alpha)) ** 2 / 2
                assert gap <= exact(found.gap) * (1 + mpf(10) ** -6) < mp.inf
                if make is gaussian:  # of the returned distribution, that of the rounded dual point
                    apart = mp.erf(abs(lam - dual) * mp.sqrt(law(dual)[3] / 8))
                    assert apart <= exact(found.total_variation_error)


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
    for act in (lambda: found.distribution, lambda: problem.solve("exact", tol=1e-3)):
        with pytest.raises(DomainError, match=r"infinite at 1 of 1 dual points .* in float64") as caught:
            act()
        assert caught.value.query == (0,)
    wide = torch.ones(1, dtype=torch.float64, requires_grad=True)
    z = torch.full((1, 1), 1e9, dtype=torch.float64)
    InferenceProblem(Gamma(1.0, wide), z, 1e-8).solve("exact", tol=1e-3).dual.sum().backward()
    assert wide.grad is not None
    assert float(wide.grad) == pytest.approx(1, rel=1e-3)


WEIGHTS = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
FAR: list[tuple[Callable[[Any], AbstractPreference], Law]] = [
    *((lambda t, c=c: Bernoulli(logits=t(c)), coin(c)) for c in (2.25, -3.5, 0.0, 35.0, -1e3, 1e4)),
    *((lambda t, r=r: Poisson(t(r)), counts(r)) for r in (0.25, 2.0**-40, 2.0**40)),
    (lambda t: Gamma(t(0.5), t(4.0)), waiting(0.5, 4.0)),
    (lambda t: Laplace(t(3.0), t(0.5)), two_sided(3.0, 2.0, 2.0)),
    (lambda t: AsymmetricLaplace(t(0.0), t(2.0**-10), t(2.0**10)), two_sided(0.0, 2.0**-10, 2.0**10)),
    (lambda t: Gaussian(t(3.0), variance=t(0.5)), normal(3.0, 0.5)),
    *(
        (lambda t, a=a, b=b: Box(t(a), t(b)), between(a, b, 0.0))
        for a, b in ((0.0, 1.0), (-1.0, 1.0), (-5.0, 0.0), (100.0, 101.0))
    ),
    *(
        (lambda t, a=a, b=b, c=c: TruncatedExponential(t(a), t(b), t(c)), between(a, b, c))
        for a, b in ((0.0, 1.0), (-1.0, 1.0), (100.0, 101.0))
        for c in (0.25, -1.25, 1.5, -(2.0**20))
    ),
    *(
        (
            lambda t, points=points: Discrete(
                torch.stack([t(x) for x in points]), WEIGHTS.log().to(t(0.0).dtype)
            ),
            components(points, [0.0] * 3, WEIGHTS.tolist()),
        )
        for points in ([0.0, 1.0, 2.0], [-1.0, 0.0, 3.0], [1e4, 1e4 + 1, 1e4 + 2])
    ),
    *(
        (
            lambda t, points=points, widths=widths: GaussianMixture(
                torch.stack([t(x) for x in points]),
                torch.stack([t(x) for x in widths]),
                WEIGHTS.log().to(t(0.0).dtype),
            ),
            components(points, widths, WEIGHTS.tolist()),
        )
        for points in ([0.0, 1.0, 2.0], [1e4, 1e4 + 1, 1e4 + 2])
        for widths in ([0.0] * 3, [0.5, 1.0, 0.25])
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("make", "law"), FAR)
def test_cumulants_and_moments_far_out_and_near_zero(
    make: Callable[[Any], AbstractPreference], law: Law, dtype: torch.dtype
) -> None:
    """Log M, mean, shift and covariance as right as a rounded argument allows, and what autograd makes of them."""
    u = make(lambda value: torch.tensor([value], dtype=dtype))
    eps, spread = torch.finfo(dtype).eps, 3 if isinstance(u, Discrete | GaussianMixture) else 0
    sizes = [1e-30, 1e-18, 1e-9, 1e-4, 0.1, 0.45, 0.55, 1.0, 1.75, 3.0, 30.0, 1e4, 1e9, 1e15, 1e18]
    with mp.workdps(120):
        for size in [*sizes, *(-size for size in sizes[::3])]:
            lam = torch.tensor([[size]], dtype=dtype, requires_grad=True)
            inside = u.inside(lam.detach())
            if inside is not None and not bool(inside.all()):
                continue
            x = exact(lam.detach())
            value, mean, less, variance = law(x)
            moved, slack = abs(x) * variance, 2 * mpf(torch.finfo(dtype).tiny)
            if max(abs(value), abs(mean), moved) > mpf(torch.finfo(dtype).max) / 1e3:
                continue
            # A difference of two means, but for tiny tilts; its allowance says so.
            slopes = 1 if type(u) is TruncatedExponential and abs(size) > 1e-7 else 0
            log_mgf = u.log_mgf(lam)
            (slope,) = torch.autograd.grad(log_mgf.sum(), lam)
            found = {
                "log M": (log_mgf, value, abs(value) + abs(x * mean)),
                "gradient": (slope, mean, abs(mean) + abs(less) + moved + mp.sqrt(variance)),
                "mean": (u.tilted_mean(lam), mean, abs(mean) + moved + mp.sqrt(variance)),
                "shift": (u.tilted_shift(lam), mean + less, abs(mean + less) + moved + slopes),
                "covariance": (
                    u.tilted_covariance(lam)(torch.ones_like(lam)),
                    variance,
                    variance * (1 + spread * min(abs(x), 1000)) + mpf(eps) * spread,
                ),
            }
            for name, (got, expected, scale) in found.items():
                apart = abs(mpf(got.item()) - expected)
                assert apart <= 64 * mpf(eps) * scale + slack, (name, size, got.item(), float(expected))
            rounding = u.rounding(lam.detach())
            if dtype == torch.float64 and not spread and rounding is not None:
                shift, expected, scale = found["shift"]
                assert abs(mpf(shift.item()) - expected) <= mpf(float(rounding)) + slack, size
                assert mpf(float(rounding)) <= 1e-9 * (1 + abs(x) / 1e5) * scale + slack, (size, rounding)
            for got in (u.tilted_mean(lam), u.tilted_shift(lam)):
                assert bool(torch.autograd.grad(got.sum(), lam)[0].isfinite())


M, D = 4, 3


def positive(*shape: int, seed: int = 1) -> Tensor:
    return drawn(*shape, seed=seed).abs() + 0.5


BOUNDED = [
    Gamma(positive(D), positive(M, D, seed=2) + 1),
    Laplace(drawn(M, D), positive(D) / 3),
    AsymmetricLaplace(drawn(D), positive(D) + 1, positive(M, D, seed=3) + 2),
]


@pytest.mark.parametrize("u", BOUNDED, ids=lambda u: type(u).__name__)
@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_what_leaves_the_domain_says_which_alpha_would_not(u: AbstractProduct, estimator: str) -> None:
    z = drawn(2, M, D, seed=9).abs()
    alpha = torch.full((2, M), 0.05, dtype=torch.float64)
    alpha[1, 2] = 1e4
    for memory in (2**29, 1):
        with pytest.raises(DomainError) as caught:
            InferenceProblem(u, z, alpha).solve(estimator, memory_budget=memory)
        error = caught.value
        assert error.query == (1, 2)
        assert f"of 1 of 8 queries where log M of the {type(u).__name__} preference is infinite" in str(error)
        assert error.largest_alpha is not None
        assert f"alpha is 10000 and the largest admissible alpha {error.largest_alpha:.6g}" in str(error)
        fits, fails = alpha.clone(), alpha.clone()
        fits[1, 2], fails[1, 2] = error.largest_alpha, error.largest_alpha * (1 + 3e-5)
        assert bool(InferenceProblem(u, z, fits).solve(estimator).mean.isfinite().all())
        with pytest.raises(DomainError):
            InferenceProblem(u, z, fails).solve(estimator)
    problem = InferenceProblem(u, z, alpha)
    assert bool(problem.solve("exact").converged.all())
    assert bool(problem.solve("gradient_ascent", tol=1e-3, throw=False).gap.isfinite().all())


def test_counts_that_overflow_are_outside() -> None:
    u = Poisson(torch.ones(1))
    with pytest.raises(DomainError, match=r"infinite or overflows .* largest admissible alpha 4\d"):
        InferenceProblem(u, torch.ones(1, 1), alpha=90.0).solve("first_order")
    found = InferenceProblem(u, torch.full((1, 1), 1e6), alpha=90.0).solve("exact", tol=1e-4)
    assert float(found.mean) == pytest.approx(1e6, rel=1e-3)


@pytest.mark.parametrize(("rate", "z", "alpha"), [(1e-200, 5, 100), (1e-300, 1e3, 1e3), (1e-30, 1e-3, 1e6)])
def test_a_tiny_rate_has_an_answer_far_out(rate: float, z: float, alpha: float) -> None:
    """Where λ is hundreds, and its exponential need not be finite."""
    u = Poisson(torch.tensor([rate], dtype=torch.float64))
    problem = InferenceProblem(u, torch.tensor([[z]], dtype=torch.float64), alpha)
    found = problem.solve("exact", tol=1e-9)
    mp.dps = 40
    lam, best = mpf(float(found.dual)), mpf(float(found.dual) - float(found.dual_error))
    # The gradient falls: it is above 0 before the maximum and below 0 after it.
    for end, rises in ((best, True), (2 * lam - best, False)):
        assert (mpf(z) - mpf(rate) * mp.expm1(end) - end / alpha > 0) == rises
    assert float(found.distribution.mean()) == pytest.approx(float(found.mean))
    assert float(found.mean) == pytest.approx(float(mpf(rate) * mp.exp(lam)), rel=1e-12)
    with pytest.raises(DomainError, match="largest admissible alpha"):
        InferenceProblem(u, torch.tensor([[z]], dtype=torch.float64), 1e7).solve("first_order")
