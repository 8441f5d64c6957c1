"""The discrete preference: moments, cumulant, masks."""

from __future__ import annotations

import torch

from fenchel import Discrete

GENERATOR = torch.Generator().manual_seed(0)
T = torch.randn(2, 6, 3, dtype=torch.float64, generator=GENERATOR)
LOG = torch.randn(2, 4, 6, dtype=torch.float64, generator=GENERATOR)


def test_weights_are_normalised() -> None:
    torch.testing.assert_close(Discrete(T, LOG).weights().sum(-1), torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(Discrete(T).weights(), torch.full((1, 6), 1 / 6, dtype=torch.float64))


def test_moments_are_the_derivatives_of_the_cumulant_at_zero() -> None:
    u = Discrete(T, LOG)

    def log_mgf(lam: torch.Tensor) -> torch.Tensor:
        return u.log_mgf(lam).sum()

    zero = torch.zeros(2, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(torch.func.grad(log_mgf)(zero), u.mean())
    lam = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Discrete(T[0], LOG[0, :1]).log_mgf(lam).sum(), lam, create_graph=True)
    hessian = torch.cat([torch.autograd.grad(g, lam, retain_graph=True)[0] for g in gradient[0]])
    torch.testing.assert_close(hessian, u.covariance()[0, 0])


def test_the_covariance_product_is_the_product_with_the_covariance() -> None:
    u = Discrete(T, LOG)
    v = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(u.covariance_product(v), (u.covariance() @ v.unsqueeze(-1)).squeeze(-1))


def test_a_bool_mask_is_a_preference_that_leaves_out() -> None:
    mask = torch.tensor([True, True, False, True, False, True])
    u = Discrete(T, mask)
    torch.testing.assert_close(u.mean()[0, 0], T[0, mask].mean(0))


def test_one_row_a_query_or_one_for_all() -> None:
    assert Discrete(T, LOG[0, 0]).log_weights.shape == (1, 6)
    assert Discrete(T, LOG[0]).log_weights.shape == (4, 6)
    assert Discrete(T, LOG[:, :1]).log_weights.shape == (2, 1, 6)


def test_weights_far_below_float32_stay_finite() -> None:
    u = Discrete(T.float(), torch.tensor([0.0, -80, -200, 0, 0, 0]))
    assert bool(torch.isfinite(u.mean()).all())
    assert bool(torch.isfinite(u.log_mgf(torch.randn(4, 3))).all())
