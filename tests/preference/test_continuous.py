"""Densities over places: Gaussian moments in closed form, anything else by integrals that converge or are refused."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from fenchel import Continuous1d, Continuous2d, DomainError, Gaussian, InferenceProblem, ProblemError
from tests.normal import drawn

M = 4
RECTANGLE = ((-7.0, 7.0), (-7.0, 7.0))


def gaussian(k: int) -> Gaussian:
    root = drawn(M, k, k, seed=1)
    return Gaussian(drawn(M, k), 0.1 * (root @ root.mT) + 0.15 * torch.eye(k, dtype=torch.float64))


def both(k: int) -> tuple[Continuous1d | Continuous2d, Continuous1d | Continuous2d]:
    """The closed form, and the same by quadrature on much of the space."""
    if k == 1:
        return Continuous1d("quadratic", gaussian(1)), Continuous1d("quadratic", gaussian(1), (-12, 12))
    return Continuous2d("quadratic", gaussian(2)), Continuous2d("quadratic", gaussian(2), RECTANGLE)


def inside(u: Continuous1d | Continuous2d, seed: int) -> Tensor:
    lam = drawn(3, M, u.dim, seed=seed)
    reach: Any = u.reach(torch.zeros_like(lam), lam)
    return lam * (0.4 * reach).clamp(max=1).unsqueeze(-1)


@pytest.mark.parametrize("k", [1, 2])
def test_closed_form_and_integrals_are_one_function(k: int) -> None:
    closed, integrals = both(k)
    lam, v = inside(closed, seed=2), drawn(3, M, closed.dim, seed=3)
    for name in ("log_mgf", "tilted_mean", "tilted_shift"):
        torch.testing.assert_close(
            getattr(closed, name)(lam), getattr(integrals, name)(lam), rtol=1e-7, atol=1e-8
        )
    torch.testing.assert_close(
        closed.tilted_covariance(lam)(v), integrals.tilted_covariance(lam)(v), rtol=1e-6, atol=1e-7
    )
    twice = closed.tilted(lam / 2).tilted(lam / 2)
    torch.testing.assert_close(twice.mean(), closed.tilted_mean(lam))
    one, other, at = closed.tilted(lam), integrals.tilted(lam), drawn(3, M, k, seed=5)
    torch.testing.assert_close(one.log_density(at), other.log_density(at), rtol=1e-6, atol=1e-6)
    places = one.places.covariance() + one.places.mean().unsqueeze(-1) * one.places.mean().unsqueeze(-2)
    torch.testing.assert_close(torch.cat([one.places.mean(), places.flatten(-2)], -1), one.mean())


def test_the_domain_ends_where_the_precision_does() -> None:
    u = Continuous2d(
        "quadratic", Gaussian(torch.zeros(2).double(), variance=torch.tensor([0.5, 0.25]).double())
    )
    lam = torch.zeros(1, 6, dtype=torch.float64)
    direction = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    # Precisions are 2 and 4: 2 - 2t vanishes at t = 1.
    torch.testing.assert_close(u.reach(lam, direction), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(u.reach(direction / 2, direction), torch.full((1,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(u.reach(lam, -direction), torch.full((1,), torch.inf, dtype=torch.float64))
    problem = InferenceProblem(u, direction, alpha=5.0)
    with pytest.raises(DomainError, match=r"largest admissible alpha 0\.99999") as caught:
        problem.solve("first_order")
    assert caught.value.largest_alpha == pytest.approx(1.0, rel=1e-5)
    found = problem.solve("exact")
    assert bool(found.converged.all())
    assert u.inside(found.dual) is not None
    assert bool(torch.isfinite(problem.dual(found.dual)).all())


def bumps(places: Tensor) -> Tensor:
    centers = torch.linspace(0, 1, 5, dtype=places.dtype)
    return torch.exp(-20 * (places[:, :1] - centers).square())


def test_samples_are_of_the_density() -> None:
    generator = torch.Generator().manual_seed(0)
    u = Continuous2d(bumps, lambda x: -x.square().sum(-1), ((0, 1), (-1, 2)), dtype=torch.float64).tilted(
        drawn(M, 5, seed=2)
    )
    places = u.sample_places(100_000, generator)
    assert places.shape == (100_000, M, 2)
    low, high = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64)
    assert bool(((places >= low) & (places <= high)).all())
    assert bool(u.log_density(torch.stack([low, high]).unsqueeze(1) * 1.1).isneginf().all())
    torch.testing.assert_close(places.mean(0), u.expectation(lambda x: x), rtol=0, atol=0.01)
    torch.testing.assert_close(u.sample(100_000, generator).mean(0), u.mean(), rtol=0, atol=0.005)


@pytest.mark.parametrize("k", [1, 2])
def test_expectations_of_narrow_functions(k: int) -> None:
    """Of a bump, which two queries read at different places: another Gaussian's density at its centre."""
    mean = torch.tensor([[0.0] * k, [0.4] * k], dtype=torch.float64, requires_grad=True)
    spread = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    kind: Any = Continuous1d if k == 1 else Continuous2d
    density = Gaussian(mean, variance=spread)
    everywhere = kind("quadratic", density)
    cases = [(0.3, everywhere), (1e-2, everywhere)]
    if k == 1:
        cases += [(1e-3, everywhere), (0.3, Continuous1d("quadratic", density, (-12, 12)))]
    for width, u in cases:
        apart, variance = mean - 0.3137, spread + width**2
        expected = ((width**2 / variance) ** 0.5 * torch.exp(-apart.square() / (2 * variance))).prod(-1)
        found = u.expectation(lambda x, w=width: torch.exp(-(x - 0.3137).square().sum(-1, True) / (2 * w**2)))
        torch.testing.assert_close(found.squeeze(-1), expected, rtol=1e-9, atol=0)
        for part in (mean, spread):
            one, other = (
                torch.autograd.grad(value.sum(), part, retain_graph=True)[0] for value in (found, expected)
            )
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6 * float(expected.detach().max()))


def grain(places: Tensor) -> Tensor:
    """Something that is different at every place."""
    return torch.frac(1e6 * torch.sin(1e5 * places[:, :1])) + places.sum(-1, keepdim=True)


def test_integrals_that_do_not_converge_are_refused() -> None:
    z = torch.tensor([[0.5]], dtype=torch.float64)
    line = Continuous1d(grain, None, (0, 1), dtype=torch.float64)
    plane = Continuous2d(lambda x: (x.sum(-1, keepdim=True) > 0.7).double(), None, ((0, 1), (0, 1)))
    for u in (line, plane.to(torch.float64)):
        message = rf"integrals of {type(u).__name__}.* do not converge for 1 of 1.*points=.*breaks="
        for estimator in ("first_order", "second_order", "exact"):
            with pytest.raises(ProblemError, match=message):
                InferenceProblem(u, z).solve(estimator, **({"throw": False} if estimator == "exact" else {}))
        for call in (u.mean, lambda u=u: u.log_mgf(z), lambda u=u: u.covariance_product(z), u.sample):
            with pytest.raises(ProblemError, match=message):
                call()
    with pytest.raises(ProblemError, match="expectation did not converge"):
        Continuous1d("quadratic", None, (0, 1), dtype=torch.float64).expectation(grain)
    with pytest.raises(ProblemError, match="expectation did not converge"):
        Continuous1d("quadratic", Gaussian(drawn(1), variance=1.0)).expectation(grain)


def test_a_jump_on_a_line_is_found_and_what_is_lost_is_in_the_bound() -> None:
    def step(places: Tensor) -> Tensor:
        return torch.cat([(places > 0.3).to(places.dtype), places], -1)

    z = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    given: list[dict[str, Any]] = [{}, {"breaks": [0.3]}, {"accuracy": 1e-2}]
    found, whole, rough = (
        InferenceProblem(Continuous1d(step, None, (0, 1), dtype=torch.float64, **options), z).solve(
            "first_order"
        )
        for options in given
    )
    torch.testing.assert_close(found.mean, whole.mean, rtol=1e-10, atol=1e-11)
    assert bool(((rough.mean - whole.mean).norm(dim=-1) <= rough.mean_error).all())
    torch.testing.assert_close(rough.mean, whole.mean, rtol=1e-2, atol=0)


def peaks(
    means: list[tuple[float, ...]], widths: list[float], shares: list[float]
) -> Callable[[Tensor], Tensor]:
    """The log density of a mixture of spherical Gaussians."""

    def log_density(places: Tensor) -> Tensor:
        logs = [
            math.log(share)
            - places.shape[-1] * math.log(width)
            + (places - at).square().sum(-1) / (-2 * width**2)
            for at, width, share in zip(torch.tensor(means, dtype=torch.float64), widths, shares, strict=True)
        ]
        return torch.logsumexp(torch.stack(logs), 0)

    return log_density


def tilted_peaks(
    means: list[tuple[float, ...]], widths: list[float], shares: list[float], lam: Tensor
) -> tuple[Any, list[Any], list[list[Any]]]:
    """Log of the mass on the unit interval or square, mean and covariance under the tilt, with 40 digits."""
    k, parts = lam.shape[-1], []
    with mp.workdps(40):
        for at, width, share in zip(means, widths, shares, strict=True):
            mass, first, second = mpf(share), [], []
            for m, tilt in zip(at, lam.flatten().tolist(), strict=True):
                s, c = mpf(width), mpf(m) + mpf(width) ** 2 * mpf(tilt)
                low, high = -c / s, (1 - c) / s
                # Mirrored where the peak lies above, so that both terms are small.
                near, far = (low, high) if high > 0 else (-high, -low)
                inside = (mp.erfc(near / mp.sqrt(2)) - mp.erfc(far / mp.sqrt(2))) / 2
                edge = (mp.npdf(low) - mp.npdf(high)) / inside
                bent = (low * mp.npdf(low) - high * mp.npdf(high)) / inside
                mass *= inside * mp.exp(mpf(m) * mpf(tilt) + (s * mpf(tilt)) ** 2 / 2)
                first.append(c + s * edge)
                second.append(s**2 * (1 + bent - edge**2))
            parts.append((mass, first, second))
        total = sum(mass for mass, _, _ in parts)
        mean = [sum(mass * first[i] for mass, first, _ in parts) / total for i in range(k)]

        def covariance(i: int, j: int) -> Any:
            apart = [(first[i] - mean[i]) * (first[j] - mean[j]) for _, first, _ in parts]
            own = [second[i] if i == j else 0 for _, _, second in parts]
            return sum(part[0] * (a + b) for part, a, b in zip(parts, apart, own, strict=True)) / total

        return mp.log(total), mean, [[covariance(i, j) for j in range(k)] for i in range(k)]


RANDOM = random.Random(7)  # noqa: S311 -- places and widths


def places(count: int, k: int = 1) -> list[tuple[float, ...]]:
    return [tuple(RANDOM.random() for _ in range(k)) for _ in range(count)]


NARROW = [
    ([(x,)], [width], [1.0])
    for width in (0.3, 1e-2, 3e-4, 1e-6)
    for x in (0.31371, 0.5 + 1.4 * width, 1 - 2 * width)
]
MIXED = [(places(3), [10 ** RANDOM.uniform(-6, -0.5) for _ in range(3)], [0.2, 0.3, 0.5]) for _ in range(3)]
ON_A_PLANE = [
    *((places(1, 2), [width], [1.0]) for width in (1e-2, 1e-4)),
    (places(2, 2), [0.2, 1e-4], [0.4, 0.6]),
]


@pytest.mark.parametrize("case", [*NARROW, *MIXED, *ON_A_PLANE])
def test_peaks_of_any_width_are_integrated(
    case: tuple[list[tuple[float, ...]], list[float], list[float]],
) -> None:
    """Log M, mean, covariance and a certified answer, against the truncated Gaussians in closed form."""
    means, widths, _ = case
    k = len(means[0])
    points: Any = means if len(means) > 1 else []
    kind, space = (Continuous1d, (0, 1)) if k == 1 else (Continuous2d, ((0, 1), (0, 1)))
    points = [x for (x,) in points] if k == 1 else points
    u: Any = kind(lambda places: places, peaks(*case), space, points=points, dtype=torch.float64)
    at_rest = tilted_peaks(*case, torch.zeros(1, k))
    eye = torch.eye(k, dtype=torch.float64)
    for size in (0.0, min(1 / min(widths), 1e3)):
        lam = size * torch.linspace(1, -0.5, k, dtype=torch.float64).unsqueeze(0)
        log_mass, mean, covariance = tilted_peaks(*case, lam)
        spread = math.sqrt(sum(float(covariance[i][i]) for i in range(k)))
        rough = 1e-10 * spread + 1e-15
        assert abs(mpf(float(u.log_mgf(lam))) - log_mass + at_rest[0]) <= 1e-10 * (1 + size)
        found = [u.tilted_mean(lam)[0, i] for i in range(k)]
        assert all(abs(mpf(float(one)) - other) <= rough for one, other in zip(found, mean, strict=True))
        for row, wanted in zip(u.tilted_covariance(lam)(eye), covariance, strict=True):
            apart = [abs(mpf(float(one)) - other) for one, other in zip(row, wanted, strict=True)]
            assert max(apart) <= 1e-9 * spread**2 + 1e-14 * spread
    z = 0.3 * eye[:1]
    for estimator in ("exact", "first_order"):
        answer = InferenceProblem(u, z, 2.0).solve(estimator)
        _, mean, _ = tilted_peaks(*case, answer.dual)
        dual = answer.dual.flatten().tolist()
        gradient = [at_rest[1][i] + mpf(float(z[0, i])) - mpf(dual[i]) / 2 - mean[i] for i in range(k)]
        assert 2 * mp.norm(gradient) <= mpf(float(answer.dual_error)) * (1 + mpf(10) ** -9)
        apart = [mpf(float(answer.mean[0, i])) - mean[i] for i in range(k)]
        assert mp.norm(apart) <= mpf(float(answer.mean_error))


def test_points_say_where_to_look() -> None:
    """A narrow peak within a wide density lies between the nodes, unless somebody says where it is."""
    means: list[tuple[float, ...]] = [(0.5,), (0.312345,)]
    case = (means, [0.2, 1e-8], [0.5, 0.5])
    _, mean, _ = tilted_peaks(*case, torch.zeros(1, 1))
    for point in (0.31234501, 0.312345):
        u = Continuous1d(lambda x: x, peaks(*case), (0, 1), points=[point], dtype=torch.float64)
        # Places are rounded, to 5e-9 of the width.
        assert float(u.mean()) == pytest.approx(float(mean[0]), rel=1e-9)
        samples = u.sample_places(4000, torch.Generator().manual_seed(0))
        assert float(((samples - 0.312345).abs() < 1e-6).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_a_peak_that_evidence_makes_is_integrated_or_refused() -> None:
    u = Continuous1d("quadratic", None, (-1, 1), dtype=torch.float64)
    sharp = torch.tensor([[0.0, -1.0]], dtype=torch.float64)
    for alpha in (1.0, 1e2, 1e4, 1e6):
        found = InferenceProblem(u, sharp, alpha).solve("first_order")
        # exp(-alpha x²) has the second moment 1/(2 alpha) once the interval is wide for it.
        if alpha >= 1e2:
            assert float(found.mean[0, 1]) == pytest.approx(1 / (2 * alpha), rel=1e-9)
    with pytest.raises(ProblemError, match="do not converge"):
        InferenceProblem(u, sharp, 1e12).solve("first_order")
