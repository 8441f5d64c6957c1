"""Preferences as objects of ``torch.distributions``, where torch has them; and ones that write three methods."""

from typing import Any

import pytest
import torch
from torch import Tensor

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
from fenchel.preference import AbstractPreference
from tests.conformance import toys
from tests.conformance.families import FAMILIES
from tests.normal import drawn

D = 4


ABOVE = drawn(D).abs() + 1
FACTOR = drawn(D, 2)
MATRIX = drawn(D, D) @ drawn(D, D).mT + torch.eye(D, dtype=torch.float64)

TORCHS = (Bernoulli, Box, Gamma, Gaussian, GaussianMixture, Laplace, Poisson)
PREFERENCES: dict[str, Any] = {family.name: family.preference(family.draw()) for family in FAMILIES}
THERE = {name: u for name, u in PREFERENCES.items() if type(u) in TORCHS}
THERE["mixture of one matrix"] = GaussianMixture(drawn(5, D), covariances=MATRIX)


@pytest.mark.parametrize("name", THERE)
def test_torch_has_the_same_distribution_and_its_tilt_where_it_has_one(name: str) -> None:
    u, generator = THERE[name], torch.Generator().manual_seed(0)
    lam = 0.2 * drawn(*torch.broadcast_shapes(u.lead, (2, 1)), u.dim, seed=1)
    tilted = u.tilted(lam)
    if isinstance(u, Box | Laplace):
        with pytest.raises(ProblemError, match="has no counterpart of"):
            tilted.torch_distribution()
    for one in [u] if isinstance(u, Box | Laplace) else [u, tilted]:
        found = one.torch_distribution()
        assert (found.batch_shape, found.event_shape) == (one.lead, (u.dim,))
        points = one.sample((2, 3) if one.lead == (1,) else (), generator)
        points = points.squeeze(-2) if one.lead == (1,) else points
        torch.testing.assert_close(found.log_prob(points), one.log_density(points))
        torch.testing.assert_close(found.mean, one.mean().expand(*one.lead, u.dim))


@pytest.mark.parametrize(
    ("name", "point"),
    [("Bernoulli, a coin a query", 0.5), *(("Poisson", x) for x in (1.5, -1)), ("Gamma, of queries", -0.1), ("Box", 9)],
)  # fmt: skip
def test_outside_of_the_support_there_is_no_density(name: str, point: float) -> None:
    u = THERE[name]
    for distribution in (u, u.tilted(0.1 * drawn(1, u.dim))):
        at = torch.full((1, u.dim), point, dtype=torch.float64)
        assert bool(distribution.log_density(at).isneginf().all())


def test_what_torch_does_not_have_is_named_and_gradients_reach_the_parameters() -> None:
    refused: dict[str, AbstractPreference] = {
        "no distribution of templates; use that of their indices": Discrete(drawn(5, D)),
        "numbers above 0 for a density": Gaussian(drawn(D), variance=0.0),
        "singular matrix": Gaussian(drawn(D), FACTOR @ FACTOR.mT),
        "no counterpart of Continuous1d": Continuous1d("quadratic", Gaussian(drawn(1), variance=1.0)),
    }
    for message, u in refused.items():
        with pytest.raises(ProblemError, match=message):
            u.torch_distribution()
    rate = ABOVE.clone().requires_grad_()
    mean = Poisson(rate).tilted(0.1 * drawn(1, D)).torch_distribution().mean
    assert bool((torch.autograd.grad(mean.sum(), rate)[0] > 0).all())


class Rows(toys.Cumulant):
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

    class Hidden(toys.Cumulant):
        def __init__(self, center: Tensor) -> None:
            self.read = lambda: center

    with pytest.raises(NotImplementedError, match="Unnamed has one row per query; list these attributes in"):
        Unnamed(drawn(3, D), ABOVE).queries(slice(1))
    with pytest.raises(NotImplementedError, match="Hidden has no tensor among its attributes; implement dim"):
        _ = Hidden(drawn(D)).dim


def test_a_mean_of_ones_own_that_is_not_the_gradient_is_caught_at_first_use() -> None:
    class Wrong(toys.Exponential):
        def tilted_mean(self, lam: Tensor) -> Tensor:
            return self.means * (1 + lam)

    class Undifferentiable(toys.Exponential):
        def log_mgf(self, lam: Tensor) -> Tensor:
            return torch.from_numpy(super().log_mgf(lam).numpy())

    class Zero(toys.Cumulant):
        """Its mean is 0, to rounding, where it is checked."""

        def tilted_mean(self, lam: Tensor) -> Tensor:
            return lam * self.variance.sqrt() * self.variance.sqrt() + self.center

    with pytest.raises(
        ProblemError, match=r"tilted_mean of Wrong is .* expected .*, the gradient of its log_mgf"
    ):
        InferenceProblem(Wrong(ABOVE), drawn(3, D))
    InferenceProblem(Undifferentiable(ABOVE), 0.1 * drawn(3, D)).solve("exact")
    assert not Undifferentiable.unchecked[0]
    InferenceProblem(Zero(-0.1 * ABOVE, ABOVE), drawn(3, D))
