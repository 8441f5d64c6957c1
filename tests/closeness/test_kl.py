"""The Kullback–Leibler closeness: conjugacy and its derivatives."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from fenchel import KL

LOG_U = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log()


def draw(seed: int) -> torch.Tensor:
    return 3 * torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31))
def test_weights_reach_the_supremum_of_the_conjugate(seed: int) -> None:
    f = draw(seed)
    p = KL().weights(f, LOG_U)
    torch.testing.assert_close(
        KL().fenchel_young_gap(p, f, LOG_U), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0
    )
    other = draw(seed + 1).softmax(-1)
    assert bool((KL().fenchel_young_gap(other, f, LOG_U) > 0).all())


def test_weights_are_the_gradient_and_the_product_the_hessian_of_the_conjugate() -> None:
    f, v = draw(0), draw(1)

    def conjugate(potential: torch.Tensor) -> torch.Tensor:
        return KL().conjugate(potential, LOG_U).sum()

    p = KL().weights(f, LOG_U)
    torch.testing.assert_close(torch.func.grad(conjugate)(f), p)
    hessian = torch.autograd.functional.hessian(conjugate, f).flatten(2).flatten(0, 1)
    torch.testing.assert_close(KL().hessian_product(f, v, LOG_U).flatten(), hessian @ v.flatten())


def test_the_divergence_is_zero_at_the_preference_and_infinite_outside_its_support() -> None:
    u = LOG_U.exp()
    assert float(KL().value(u, LOG_U).abs()) < 1e-15
    masked = LOG_U.clone()
    masked[0, 0] = -math.inf
    assert math.isinf(float(KL().value(u, masked)))
    inside = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    assert math.isfinite(float(KL().value(inside, masked.log_softmax(-1))))


def test_masked_templates_do_not_spoil_the_pairing() -> None:
    log_u = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64).log()
    f = torch.tensor([[1.0, 2.0, 1e6]], dtype=torch.float64)
    p = KL().weights(f, log_u)
    assert float(KL().fenchel_young_gap(p, f, log_u).abs()) < 1e-12
