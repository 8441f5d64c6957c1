"""Mixtures of Gaussians: softmax attention where nothing is random, and against quadrature and sampling where it is."""

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fenchel import Discrete, GaussianMixture, InferenceProblem
from fenchel.preference import AbstractPreference
from tests.normal import drawn

M, D, K, R = 5, 3, 6, 2


normal: Any = stats.multivariate_normal


def positive(*shape: int, seed: int = 1) -> Tensor:
    return drawn(*shape, seed=seed).abs() / 2 + 0.1


def square(root: Tensor) -> Tensor:
    return root @ root.mT + 0.2 * torch.eye(root.shape[-1], dtype=root.dtype)


MEANS, LOG = drawn(K, D), drawn(M, K, seed=8).log_softmax(-1)
STRUCTURES: dict[str, dict[str, Any]] = {
    "diagonal": {"variances": positive(K, D)},
    "spherical": {"variances": positive(K, 1)},
    "one variance": {"variances": 0.4},
    "full": {"covariances": square(drawn(K, D, D, seed=2))},
    "one matrix": {"covariances": square(drawn(D, D, seed=2))},
    "low rank": {"variances": positive(K, D), "factors": drawn(K, D, R, seed=3)},
}
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def matrices(structure: str) -> Tensor:
    """The covariance matrices, (K, D, D), written down again."""
    parts = STRUCTURES[structure]
    if "covariances" in parts:
        return parts["covariances"].expand(K, D, D)
    variances = torch.as_tensor(parts["variances"], dtype=torch.float64).expand(K, D)
    low_rank = parts["factors"] @ parts["factors"].mT if "factors" in parts else 0
    return torch.diag_embed(variances) + low_rank


def as_mixture(distribution: AbstractPreference) -> GaussianMixture:
    assert isinstance(distribution, GaussianMixture)
    return distribution


def test_without_covariances_it_is_softmax_attention() -> None:
    z = drawn(M, D, seed=4)
    templates = InferenceProblem(Discrete(MEANS, LOG), z).solve("exact", tol=1e-11)
    mixture = InferenceProblem(GaussianMixture(MEANS, 0.0, LOG), z).solve("exact", tol=1e-11)
    torch.testing.assert_close(mixture.mean, templates.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        as_mixture(mixture.distribution).weights(), templates.weights, rtol=1e-8, atol=1e-10
    )


@every_structure
def test_the_tilt_is_a_mixture_that_scipy_knows(structure: str) -> None:
    u, s, points = (
        GaussianMixture(MEANS, log_weights=LOG, **STRUCTURES[structure]),
        matrices(structure),
        drawn(M, D, seed=6),
    )
    found = InferenceProblem(u, drawn(2, M, D, seed=4), 1.3).solve("exact", tol=1e-9)
    inferred = found.distribution
    assert isinstance(inferred, GaussianMixture)
    assert inferred.means.shape == (2, M, K, D)
    log_density, r = inferred.log_density(points), u.responsibilities(found.dual)
    for b in range(2):
        for i in range(M):
            of_each = [
                normal((MEANS[k] + s[k] @ found.dual[b, i]).numpy(), s[k].numpy()).pdf(points[i].numpy())
                for k in range(K)
            ]
            expected = float((r[b, i] * torch.tensor(of_each)).sum().log())
            assert float(log_density[b, i]) == pytest.approx(expected, rel=1e-10)
    tilted = u.log_density(points) + (points * found.dual).sum(-1) - u.log_mgf(found.dual)
    torch.testing.assert_close(log_density, tilted)


def test_far_means_and_masked_components_do_not_cancel() -> None:
    z = 1e-5 * drawn(M, D, seed=4)
    near = InferenceProblem(GaussianMixture(MEANS, 0.3, LOG), z).solve("exact", tol=1e-8)
    far = InferenceProblem(GaussianMixture(MEANS + 2.0**30, 0.3, LOG), z).solve("exact", tol=1e-6)
    torch.testing.assert_close(far.dual, near.dual, rtol=1e-5, atol=0)
    masked = torch.cat([MEANS, torch.full((1, D), 1e100, dtype=torch.float64)])
    log = torch.cat([LOG, torch.full((M, 1), -torch.inf, dtype=torch.float64)], -1)
    with_masked = InferenceProblem(GaussianMixture(masked, 0.3, log), z).solve("exact", tol=1e-8)
    torch.testing.assert_close(with_masked.dual, near.dual, rtol=1e-7, atol=0)


def test_a_mask_is_the_mixture_of_what_is_left() -> None:
    mask = torch.tensor([True, False, True, True, False, True])
    z = drawn(M, D, seed=4)
    masked = InferenceProblem(GaussianMixture(MEANS, positive(K, D), mask), z).solve("exact", tol=1e-9)
    left = InferenceProblem(GaussianMixture(MEANS[mask], positive(K, D)[mask]), z).solve("exact", tol=1e-9)
    torch.testing.assert_close(masked.mean, left.mean, rtol=1e-8, atol=1e-8)
    assert not bool(as_mixture(masked.distribution).weights()[:, ~mask].any())
