"""Preferences as objects of ``torch.distributions``, where torch has them; and ones that write three methods."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions

from fenchel import (
    Bernoulli,
    Box,
    Continuous1d,
    Discrete,
    Gamma,
    Gaussian,
    GaussianMixture,
    InferenceProblem,
    Laplace,
    Poisson,
    ProblemError,
)
from fenchel.preference import AbstractPreference, Tilted
from tests.conformance import toys
from tests.normal import drawn

D = 4


ABOVE = drawn(D).abs() + 1
FACTOR = drawn(D, 2)
MATRIX = drawn(D, D) @ drawn(D, D).mT + torch.eye(D, dtype=torch.float64)
MATRICES = torch.linspace(1, 2, 5, dtype=torch.float64)[:, None, None] * MATRIX
WEIGHTS = drawn(2, 3, 5, seed=3).log_softmax(-1)

# What makes it, what torch calls it, and whether torch has its tilts.
FAMILIES: dict[str, tuple[Callable[[], AbstractPreference], type[distributions.Distribution], bool]] = {
    "bernoulli": (lambda: Bernoulli(logits=drawn(D)), distributions.Independent, True),
    "poisson": (lambda: Poisson(ABOVE), distributions.Independent, True),
    "gamma": (lambda: Gamma(2.0, ABOVE), distributions.Independent, True),
    "laplace": (lambda: Laplace(drawn(D), 0.3), distributions.Independent, False),
    "box": (lambda: Box(drawn(D), drawn(D) + 2), distributions.Independent, False),
    "diagonal": (lambda: Gaussian(drawn(3, D), variance=0.3), distributions.Independent, True),
    "full": (lambda: Gaussian(drawn(D), MATRIX), distributions.MultivariateNormal, True),
    "low rank": (
        lambda: Gaussian(drawn(2, 1, D), variance=0.3, factor=FACTOR),
        distributions.LowRankMultivariateNormal,
        True,
    ),
    "mixture": (lambda: GaussianMixture(drawn(5, D), 0.3), distributions.MixtureSameFamily, True),
    "mixtures": (
        lambda: GaussianMixture(drawn(2, 5, D), log_weights=WEIGHTS, covariances=MATRICES),
        distributions.MixtureSameFamily,
        True,
    ),
    "mixture of one matrix": (
        lambda: GaussianMixture(drawn(5, D), covariances=MATRIX),
        distributions.MixtureSameFamily,
        True,
    ),
    "low-rank mixture": (
        lambda: GaussianMixture(drawn(5, D), 0.1, factors=FACTOR.expand(5, D, 2)),
        distributions.MixtureSameFamily,
        True,
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_torch_has_the_same_distribution(name: str) -> None:
    make, kind, _ = FAMILIES[name]
    u = make()
    found = u.torch_distribution()
    assert isinstance(found, kind)
    assert found.batch_shape == u.lead
    assert found.event_shape == (D,)
    points = u.sample((2, 3) if u.lead == (1,) else (), torch.Generator().manual_seed(0)).squeeze(-2)
    torch.testing.assert_close(found.log_prob(points), u.log_density(points))
    torch.testing.assert_close(found.mean, u.mean().expand(*u.lead, D))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tilt_is_one_where_torch_has_it(name: str) -> None:
    make, kind, is_there = FAMILIES[name]
    u, lam = make(), 0.2 * drawn(2, 3, D, seed=1)
    tilted = u.tilted(lam)
    if not is_there:
        with pytest.raises(ProblemError, match="has no counterpart of"):
            tilted.torch_distribution()
        return
    found = tilted.torch_distribution()
    assert isinstance(found, kind)
    assert found.batch_shape == (2, 3)
    torch.testing.assert_close(found.mean, u.tilted_mean(lam))
    points = tilted.sample((), torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.log_prob(points), tilted.log_density(points))


@pytest.mark.parametrize(
    ("name", "point"),
    [("bernoulli", 0.5), ("poisson", 1.5), ("poisson", -1.0), ("gamma", -0.1), ("box", 9.0)],
)
def test_outside_of_the_support_there_is_no_density(name: str, point: float) -> None:
    u = FAMILIES[name][0]()
    for distribution in (u, u.tilted(0.1 * drawn(1, D))):
        assert float(distribution.log_density(torch.full((1, D), point, dtype=torch.float64))) == -torch.inf


def test_gradients_reach_the_parameters() -> None:
    rate = ABOVE.clone().requires_grad_()
    Poisson(rate).tilted(0.1 * drawn(1, D)).torch_distribution().mean.sum().backward()
    assert rate.grad is not None
    assert bool((rate.grad > 0).all())


@pytest.mark.parametrize(
    ("u", "message"),
    [
        (Discrete(drawn(5, D)), "no distribution of templates; use that of their indices"),
        (Gaussian(drawn(D), variance=0.0), "numbers above 0 for a density"),
        (Gaussian(drawn(D), FACTOR @ FACTOR.mT), "singular matrix"),
        (Continuous1d("quadratic", Gaussian(drawn(1), variance=1.0)), "no counterpart of Continuous1d"),
    ],
    ids=["discrete", "variance", "matrix", "places"],
)
def test_what_torch_does_not_have_is_named(u: AbstractPreference, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        u.torch_distribution()


@pytest.mark.parametrize("kind", [toys.Gaussian, toys.Cumulant])
def test_few_methods_are_a_preference(kind: Any) -> None:
    u, z = kind(drawn(D), MATRIX if kind is toys.Gaussian else ABOVE), drawn(3, D, seed=1)
    assert (u.dim, u.dtype, u.device.type) == (D, torch.float64, "cpu")
    assert repr(u) == f"{kind.__name__}(queries=(1,), dim={D}, dtype=torch.float64, device='cpu')"
    narrow = u.to(torch.float32)
    assert isinstance(narrow, kind)
    assert (narrow.center.dtype, u.center.dtype) == (torch.float32, u.dtype)
    assert u.to(torch.float64) is u
    tilted = u.tilted(z)
    assert isinstance(tilted, Tilted)
    torch.testing.assert_close(tilted.mean(), u.tilted_mean(z))
    assert tilted.to(torch.float32).mean().dtype == torch.float32
    with pytest.raises(
        ProblemError, match=r"dtype is torch.float16; expected torch.float32 or torch.float64"
    ):
        u.to(torch.float16)


class Rows(toys.Cumulant):
    """Every query has a center of its own."""

    rows = ("center",)

    def log_mgf(self, lam: Tensor) -> Tensor:
        return (lam * self.center).sum(-1) + (self.variance * lam.square()).sum(-1) / 2


def test_queries_may_have_rows_of_their_own() -> None:
    u, z = Rows(drawn(3, D), ABOVE), drawn(3, D, seed=1)
    assert (u.dim, u.lead) == (D, (3,))
    assert u.queries(slice(1, 3)).center.shape == (2, D)
    assert u.tilted(z).queries(slice(1)).lead == (1,)
    found = InferenceProblem(u, z, 0.7).solve("exact", tol=1e-10)
    expected = InferenceProblem(Gaussian(u.center, variance=ABOVE), z, 0.7).solve("exact", tol=1e-10)
    torch.testing.assert_close(found.mean, expected.mean)
    assert u.queries(slice(1, 3)).queries(slice(1)).queries(slice(1)).lead == (1,)

    class Unnamed(Rows):
        rows = ()

        @property
        def lead(self) -> torch.Size:
            return self.center.shape[:-1]

    with pytest.raises(
        NotImplementedError, match=r"Unnamed has one row per query; list these attributes in rows"
    ):
        Unnamed(drawn(3, D), ABOVE).queries(slice(1))


def test_a_preference_without_tensors_says_what_to_write() -> None:
    class Hidden(toys.Gaussian):
        def __init__(self, center: Tensor) -> None:
            self.read = lambda: center

    with pytest.raises(NotImplementedError, match="Hidden has no tensor among its attributes; implement dim"):
        _ = Hidden(drawn(D)).dim
