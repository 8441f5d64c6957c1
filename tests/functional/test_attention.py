"""Attention against its slow twin and torch's own, dropout, and the digits that narrow types keep.

What holds for every op is in ``test_conformance.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
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


HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_autocast_is_a_cast_of_the_inputs(estimator: str) -> None:
    given = call(dtype=torch.float32, keys=33, queries=17, dim=16, preference=(4, 17, 33))
    tensors: dict[str, Any] = {n: t.detach() for n, t in given.items()} | {"scale": 0.25}
    with torch.autocast("cpu", torch.bfloat16):
        found, certificate = F.attention_with_certificate(**tensors, estimator=estimator)
    cast = {n: t.bfloat16() if n in ("query", "key", "value") else t for n, t in tensors.items()}
    expected, expected_certificate = F.attention_with_certificate(**cast, estimator=estimator)
    assert torch.equal(found, expected)
    assert torch.equal(certificate.gap, expected_certificate.gap)
    assert certificate.gap.dtype == torch.float32


def test_dropout_drops_the_same_weights_backwards() -> None:
    tensors = call(preference=(5, 7))

    def function(log_preference: Tensor) -> Tensor:
        torch.manual_seed(3)
        given = {name: tensors[name] for name in ("query", "key", "value")}
        return F.attention(**given, log_preference=log_preference, scale=0.5, dropout_p=0.4)

    preference = tensors["log_preference"]
    analytic = gradients(function(preference), {"log_preference": preference})["log_preference"]
    output = function(preference)
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    direction = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    # Not under no_grad, where another kernel may drop others.
    ends = [(function(preference + s * 1e-6 * direction).sin() * weight).sum() for s in (1, -1)]
    numeric = float((ends[0] - ends[1]).detach()) / 2e-6
    assert float((analytic.nan_to_num() * direction).sum()) == pytest.approx(numeric, rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_reference_has_second_derivatives(estimator: str) -> None:
    tensors = {n: t for n, t in call().items() if n in ("query", "key", "value")}
    output = F.reference.attention(**tensors, estimator=estimator, steps=6)
    (first,) = torch.autograd.grad(output.sin().sum(), tensors["query"], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), tensors["key"])
    assert float(second.abs().max()) > 0


@pytest.mark.parametrize("alpha", [100.0, "tensor"])
@pytest.mark.parametrize("estimator", ["second_order", "exact"])
@pytest.mark.parametrize("dtype", HALF)
def test_half_types_keep_the_digits_of_a_long_dual_point(
    dtype: torch.dtype, estimator: str, alpha: float | str
) -> None:
    """At α = 100 rounding λ to the half type moves the output by 3 % (float16) and 20 % (bfloat16)."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 16, 8, generator=generator).to(dtype) for _ in range(3))
    options: dict[str, Any] = {
        "alpha": torch.full((1, 1, 1), 100.0) if isinstance(alpha, str) else alpha,
        "estimator": estimator,
    }
    truth = F.attention(q.float(), k.float(), v.float(), **options)
    found = F.attention(q, k, v, **options)
    with_certificate, certificate = F.attention_with_certificate(q, k, v, **options)
    weights = F.attention_weights(q, k, **options)
    assert found.dtype == with_certificate.dtype == weights.dtype == dtype
    rounding = torch.finfo(dtype).eps * float(truth.abs().max())
    assert float((found.float() - truth).abs().max()) <= rounding
    assert float((with_certificate.float() - truth).abs().max()) <= rounding
    expected = F.attention_weights(q.float(), k.float(), **options)
    assert float((weights.float() - expected).abs().max()) <= torch.finfo(dtype).eps
    expected_certificate = F.attention_with_certificate(q.float(), k.float(), v.float(), **options)[1]
    if estimator == "second_order":
        torch.testing.assert_close(certificate.gap, expected_certificate.gap, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("level", [-1e5, 1e5, -3e38])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_a_constant_in_the_log_preference_changes_nothing(
    dtype: torch.dtype, estimator: str, level: float
) -> None:
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 9, 8, generator=generator).to(dtype) for _ in range(3))
    for shape in ((9,), (9, 9)):
        given = torch.full(shape, level)
        expected = F.attention(q, k, v, log_preference=torch.zeros(shape), estimator=estimator)
        assert torch.equal(F.attention(q, k, v, log_preference=given, estimator=estimator), expected)
        learned = given.clone().requires_grad_()
        found = F.attention(q, k, v, log_preference=learned, estimator=estimator)
        torch.testing.assert_close(found, expected, rtol=0, atol=8 * torch.finfo(dtype).eps)
        found.float().square().sum().backward()
        assert learned.grad is not None
        assert bool(torch.isfinite(learned.grad).all())
    torch.compiler.reset()
    compiled = torch.compile(F.attention, fullgraph=True, backend="aot_eager")
    found = compiled(q, k, v, log_preference=torch.full((9, 9), level), estimator=estimator)
    torch.testing.assert_close(found, expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("preference", [None, (12,), (3, 12)])
@pytest.mark.parametrize("keys", [3, 12])
def test_second_order_keeps_its_digits_where_the_covariance_is_huge(
    keys: int, preference: tuple[int, ...] | None
) -> None:
    """α = 280 and ‖t‖ = 100: rounding Σ to float32 would move I + αΣ by more than I."""
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        key = 30 * torch.randn(1, 1, keys, 15, generator=generator) + 3
        query = 0.1 * torch.randn(1, 1, 3, 15, generator=generator)
        bias = None if preference is None else torch.randn(*preference[:-1], keys, generator=generator)
        options: dict[str, Any] = {"alpha": 280.0, "scale": 1.0, "estimator": "second_order"}
        wide = None if bias is None else bias.double()
        truth = F.attention(query.double(), key.double(), key.double(), log_preference=wide, **options)
        found = F.attention(query, key, key, log_preference=bias, **options)
        assert float((found - truth).norm() / truth.norm()) < 2e-3


@pytest.mark.parametrize(("largest", "size"), [(9, 9), (3, 4), (9, 100)])
@pytest.mark.parametrize("dtype", HALF)
def test_a_floating_mask_in_half_precision_costs_no_more_digits_than_in_torch(
    dtype: torch.dtype, largest: float, size: float
) -> None:
    """Subtracting the largest log weight of each row must not cost the digits that the half type holds."""
    errors: dict[str, list[float]] = {"ours": [], "given in float32": [], "torch": []}
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)

        def drawn(tokens: int, width: int, most: float, generator: torch.Generator = generator) -> Tensor:
            return ((2 * torch.rand(4, 4, tokens, width, generator=generator) - 1) * most).to(dtype)

        q, k, v = drawn(3, 8, largest), drawn(6, 8, largest), drawn(6, 8, largest)
        mask = drawn(3, 6, size)
        truth = scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask.double())
        found = {
            "ours": F.attention(q, k, v, log_preference=mask),
            "given in float32": F.attention(q, k, v, log_preference=mask.float() + 2e3),
            "torch": scaled_dot_product_attention(q, k, v, attn_mask=mask),
        }
        for name, output in found.items():
            errors[name].append(float((output.double() - truth).abs().max()))
    summary = {name: (sum(each) / 200, max(each)) for name, each in errors.items()}
    for name in ("ours", "given in float32"):
        assert summary[name][0] <= 1.05 * summary["torch"][0], (name, summary)
        assert summary[name][1] <= 1.05 * summary["torch"][1], (name, summary)
