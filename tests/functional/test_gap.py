"""The differentiable gap against its slow twin, the certificate and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import functional as F
from tests.functional.calls import PREFERENCES, call, gradients

ESTIMATORS = ("first_order", "second_order")


def problem(**options: Any) -> dict[str, Any]:
    tensors = call(**options)
    del tensors["value"]
    return tensors


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_values_and_gradients_agree_with_the_reference_and_the_certificate(
    estimator: str, preference: tuple[int, ...] | None, key_heads: int
) -> None:
    tensors = problem(preference=preference, alpha=(4, 1) if key_heads == 2 else (), key_heads=key_heads)
    found = F.gap(**tensors, estimator=estimator, enable_gqa=True)
    expected = F.reference.gap(**tensors, estimator=estimator)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    value = tensors["key"].detach()
    _, certificate = F.attention_with_certificate(
        **tensors, value=value, estimator=estimator, enable_gqa=True
    )
    torch.testing.assert_close(certificate.gap, found.detach(), rtol=1e-9, atol=1e-12)
    slow = gradients(expected, tensors)
    for name, gradient in gradients(found, tensors).items():
        torch.testing.assert_close(
            gradient, slow[name], rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("preference", [None, (1, 4, 1, 7), (4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_agree_with_finite_differences(estimator: str, preference: tuple[int, ...] | None) -> None:
    tensors = problem(preference=preference, alpha=(4, 1), masked=0.0, batch=1)
    names = list(tensors)

    def function(*given: Tensor) -> Tensor:
        return F.gap(**dict(zip(names, given, strict=True)), estimator=estimator)  # pyright: ignore[reportArgumentType]

    assert torch.autograd.gradcheck(function, tuple(tensors.values()), fast_mode=True)


def test_a_row_with_nothing_to_attend_to_has_no_gap_and_no_gradient() -> None:
    tensors = problem(preference=(5, 7))
    with torch.no_grad():
        tensors["log_preference"][2] = -torch.inf
    found = F.gap(**tensors)
    assert bool((found[:, :, 2] == 0).all())
    assert bool((found[:, :, 3] > 0).all())
    every = gradients(found, tensors)
    assert bool((every["query"][:, :, 2] == 0).all())
    assert all(bool(gradient.isfinite().all()) for gradient in every.values())


def test_half_types_are_computed_in_float32() -> None:
    tensors = {name: tensor.detach() for name, tensor in problem().items()}
    query, key = tensors["query"].bfloat16().requires_grad_(), tensors["key"].bfloat16()
    found = F.gap(query, key, estimator="second_order")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, F.gap(query.float(), key.float(), estimator="second_order"))
    found.sum().backward()
    assert query.grad is not None
    assert query.grad.dtype == torch.bfloat16


def test_the_gap_is_zero_where_nothing_is_learned_from_the_query() -> None:
    tensors = {name: tensor.detach() for name, tensor in problem(preference=(7,)).items()}
    nothing = {**tensors, "query": torch.zeros_like(tensors["query"])}
    for estimator in ESTIMATORS:
        assert float(F.gap(**nothing, estimator=estimator).max()) < 1e-28
        assert float(F.gap(**tensors, estimator=estimator).max()) > 1e-3


@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_an_offset_of_the_keys_costs_no_digits(estimator: str) -> None:
    """Keys are multiples of 1/16, so that the offset rounds nothing in float32."""
    generator = torch.Generator().manual_seed(0)
    query = 0.1 * torch.randn(1, 2, 6, 8, generator=generator)
    key = (torch.randn(1, 2, 20, 8, generator=generator) * 16).round() / 16
    found = F.gap(query, key + 512, estimator=estimator)
    torch.testing.assert_close(found, F.gap(query, key, estimator=estimator), rtol=2e-3, atol=0)
