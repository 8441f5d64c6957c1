"""Attention against its slow twin and torch's own; ``test_conformance.py`` has what holds for every op."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel import functional as F
from tests.functional.calls import ESTIMATORS, PREFERENCES, call, gradients

ALPHAS: list[tuple[int, ...]] = [(), (4, 1), (2, 4, 5), (5,)]
CALLS: list[dict[str, Any]] = [
    *(
        {"preference": preference, "alpha": ALPHAS[(7 * heads + at) % 4], "key_heads": heads}
        for at, preference in enumerate(PREFERENCES)
        for heads in (4, 2, 1)
    ),
    *(
        {"preference": (4, 1, keys), "alpha": (4, 1), "keys": keys, "dim": dim}
        for keys, dim in ((9, 4), (3, 9), (40, 64), (1, 5))
    ),
]


@pytest.mark.parametrize("options", CALLS, ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_values_and_gradients_agree_with_the_reference(estimator: str, options: dict[str, Any]) -> None:
    tensors = call(**options)
    found = F.attention(**tensors, estimator=estimator, enable_gqa=True)
    expected = F.reference.attention(**tensors, estimator=estimator)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    slow = gradients(expected, tensors)
    for name, gradient in gradients(found, tensors).items():
        torch.testing.assert_close(
            gradient, slow[name], rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("preference", PREFERENCES)
def test_first_order_is_torchs_attention(preference: tuple[int, ...] | None) -> None:
    tensors = call(preference=preference)
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    mask = tensors.get("log_preference")
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    found = F.attention(query, key, value, log_preference=mask)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 1e-7, 1e-12, 1e-17])
def test_the_certificate_of_tiny_evidence_bounds_its_error(
    size: float, dtype: torch.dtype, estimator: str
) -> None:
    """λ = αz is 335 % off however short z is; the difference of two means would say 0."""
    key = torch.tensor([[[[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]]]], dtype=dtype)
    query = torch.tensor([[[[size, 2 * size], [0.0, 0.0]]]], dtype=dtype)
    options: dict[str, Any] = {"scale": 1.0, "estimator": estimator}
    _, certificate = F.attention_with_certificate(query, key, key, **options)
    # At second order in z nothing else is left: (I + Σ)⁻¹z with Σ = [[8, 4], [4, 8]] / 3.
    truth = torch.linalg.solve(
        torch.eye(2).double() + torch.tensor([[8.0, 4.0], [4.0, 8.0]]).double() / 3, query[0, 0, 0].double()
    )
    apart = float((query[0, 0, 0].double() - truth).norm())
    assert apart == pytest.approx(3.35 * float(truth.norm()), rel=1e-2)
    if estimator == "first_order":
        assert float(certificate.dual_error[0, 0, 0]) >= apart * (1 - 1e-3)
    assert float(certificate.dual_error[0, 0, 0]) <= 12 * float(query.norm())
    assert float(certificate.dual_error[0, 0, 1]) == float(certificate.gap[0, 0, 1]) == 0
