"""Gaussians, exact at second order, in three structures of their covariance, and mixtures of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import Gaussian, GaussianMixture, InferenceProblem, ProblemError
from tests.normal import drawn

M, D, K = 5, 4, 2


def positive(*shape: int, seed: int = 1) -> Tensor:
    return drawn(*shape, seed=seed).abs() + 0.3


def square(root: Tensor) -> Tensor:
    return root @ root.mT + 0.2 * torch.eye(D, dtype=root.dtype)


STRUCTURES: dict[str, dict[str, Any]] = {
    "full": {"covariance": square(drawn(D, D, seed=2))},
    "full, of queries": {"covariance": square(drawn(M, D, D, seed=2))},
    "diagonal": {"variance": positive(D)},
    "diagonal, of queries": {"variance": positive(M, D)},
    "spherical": {"variance": 0.7},
    "spherical, of queries": {"variance": positive(M, 1)},
    "low rank": {"variance": positive(D), "factor": drawn(D, K, seed=3)},
    "low rank, of queries": {"variance": 0.4, "factor": drawn(M, D, K, seed=3)},
}
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


@every_structure
def test_a_structure_is_the_full_matrix_that_it_says(structure: str) -> None:
    u, points = Gaussian(drawn(D), **STRUCTURES[structure]), drawn(M, D, seed=6)
    dense = Gaussian(drawn(D), u.covariance())
    for name in ("log_mgf", "tilted_mean", "tilted_shift", "covariance_product", "log_density"):
        torch.testing.assert_close(getattr(u, name)(points), getattr(dense, name)(points), msg=name)


def test_nothing_random_is_a_point() -> None:
    """A covariance of zero: there is no density, and everything else."""
    mu = drawn(D)
    for u in (Gaussian(mu, variance=0.0), Gaussian(mu, torch.zeros(D, D, dtype=torch.float64))):
        found = InferenceProblem(u, drawn(M, D, seed=4)).solve("exact")
        torch.testing.assert_close(found.mean, mu.expand(M, D))
        torch.testing.assert_close(u.sample(3).squeeze(1), mu.expand(3, D))
        assert (u.sample().shape, u.sample(()).shape, u.sample(0).shape) == ((1, D), (1, D), (0, 1, D))
        with pytest.raises(ProblemError, match=r"varianc|covarianc"):
            u.log_density(mu.expand(1, D))


def test_singular_covariances_of_low_rank() -> None:
    root = drawn(D, 1, seed=2)
    u, dense = Gaussian(drawn(D), factor=root), Gaussian(drawn(D), root @ root.mT)
    means = (InferenceProblem(each, drawn(M, D, seed=4)).solve("second_order").mean for each in (u, dense))
    torch.testing.assert_close(*means)
    samples = dense.sample(1000, torch.Generator().manual_seed(0)).squeeze(1) - drawn(D)
    assert torch.linalg.matrix_rank(samples, rtol=1e-6) == 1
    with pytest.raises(ProblemError, match="variance holds 0"):
        u.log_density(drawn(1, D))
    for seed in range(10):  # rounding makes most of them regular
        root = 10.0 ** drawn(D, 1, seed=seed) * drawn(D, D - 1, seed=seed)
        with pytest.raises(ProblemError, match="covariance has a singular matrix"):
            Gaussian(drawn(D), root @ root.mT).log_density(drawn(1, D))


def test_far_means_do_not_cancel() -> None:
    """Only the shift of the mean enters the dual, and it is known to rounding whatever the mean is."""
    for structure in ("spherical", "full"):
        near, far = (
            InferenceProblem(Gaussian(mean, **STRUCTURES[structure]), 1e-6 * drawn(M, D, seed=3))
            for mean in (torch.zeros(D, dtype=torch.float64), drawn(D) + 1e9)
        )
        duals = (each.solve("exact", tol=1e-9).dual for each in (far, near))
        torch.testing.assert_close(*duals, rtol=1e-8, atol=0)


def test_many_dimensions_need_no_matrix() -> None:
    """50,000 squared numbers would not fit."""
    d = 50_000
    for structure in ({"variance": positive(d)}, {"variance": 0.1, "factor": drawn(d, 2) / d**0.5}):
        u = Gaussian(drawn(d, seed=1), **structure)
        problem = InferenceProblem(u, drawn(2, d, seed=2))
        second, exact = problem.solve("second_order"), problem.solve("exact")
        torch.testing.assert_close(second.mean, exact.mean, rtol=1e-4, atol=1e-4)
        assert exact.distribution.log_density(exact.mean).shape == (2,)
        assert u.sample(2).shape == (2, 1, d)


@every_structure
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_the_closed_form_is_the_inverse(structure: str, size: float) -> None:
    """However large the covariance is next to 1/alpha: what is left of the equation is rounding."""
    parts = {
        name: size ** (0.5 if name == "factor" else 1) * part for name, part in STRUCTURES[structure].items()
    }
    u, z = Gaussian(drawn(D), **parts), drawn(3, M, D, seed=4)
    for alpha in (torch.tensor(1.5, dtype=torch.float64), positive(M, seed=5)):
        problem = InferenceProblem(u, z, alpha)
        found = problem.solve("second_order")
        left = problem.dual_gradient(found.dual)
        assert float(left.norm(dim=-1).max()) < 1e-12
        exact = problem.solve("exact", tol=1e-6, throw=False)
        torch.testing.assert_close(exact.mean, found.mean, rtol=1e-6, atol=1e-6)


def test_far_means_and_masked_components_do_not_cancel() -> None:
    components, log, z = drawn(6, 3), drawn(M, 6, seed=8).log_softmax(-1), 1e-5 * drawn(M, 3, seed=4)
    near = InferenceProblem(GaussianMixture(components, 0.3, log), z).solve("exact", tol=1e-8)
    far = InferenceProblem(GaussianMixture(components + 2.0**30, 0.3, log), z).solve("exact", tol=1e-6)
    torch.testing.assert_close(far.dual, near.dual, rtol=1e-5, atol=0)
    components = torch.cat([components, torch.full((1, 3), 1e100, dtype=torch.float64)])
    log = torch.cat([log, torch.full((M, 1), -torch.inf, dtype=torch.float64)], -1)
    masked = InferenceProblem(GaussianMixture(components, 0.3, log), z).solve("exact", tol=1e-8)
    torch.testing.assert_close(masked.dual, near.dual, rtol=1e-7, atol=0)
    mixture: Any = masked.distribution
    assert not mixture.weights()[:, -1].any()
