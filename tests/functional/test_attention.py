"""Attention against its slow twin, torch's own, dense solves and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import ConvergenceError, Discrete, InferenceProblem
from fenchel import functional as F
from tests.functional.calls import ESTIMATORS, PREFERENCES, call, directional_derivatives, gradients

ALPHAS: list[tuple[int, ...]] = [(), (4, 1), (2, 4, 5), (5,)]


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_values_and_gradients_agree_with_the_reference(
    estimator: str, preference: tuple[int, ...] | None, key_heads: int
) -> None:
    alpha = ALPHAS[(len(PREFERENCES) * key_heads + PREFERENCES.index(preference)) % len(ALPHAS)]
    tensors = call(preference=preference, alpha=alpha, key_heads=key_heads)
    found = F.attention(**tensors, estimator=estimator, enable_gqa=True)
    expected = F.reference.attention(**tensors, estimator=estimator)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    slow = gradients(expected, tensors)
    for name, gradient in gradients(found, tensors).items():
        torch.testing.assert_close(
            gradient, slow[name], rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("preference", [None, (7,), (2, 4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_agree_with_finite_differences(estimator: str, preference: tuple[int, ...] | None) -> None:
    tensors = call(preference=preference, alpha=(4, 1), key_heads=2, masked=0.0)

    def function(**given: Any) -> Tensor:
        return F.attention(**given, estimator=estimator, enable_gqa=True, tol=1e-12)

    for name, (numeric, analytic) in directional_derivatives(function, tensors).items():
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-7), name


def test_a_wrong_gradient_is_caught() -> None:
    tensors = call()
    right, wrong = (gradients(F.attention(**tensors, estimator=e), tensors) for e in ("exact", "first_order"))
    assert float((right["query"] - wrong["query"]).abs().max()) > 1e-3


@pytest.mark.parametrize("preference", PREFERENCES)
def test_first_order_is_torchs_attention(preference: tuple[int, ...] | None) -> None:
    tensors = call(preference=preference)
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    mask = tensors.get("log_preference")
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    found = F.attention(query, key, value, log_preference=mask)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("preference", [None, (4, 1, 7), (2, 4, 5, 7)])
def test_a_row_is_an_inference_problem(estimator: str, preference: tuple[int, ...] | None) -> None:
    tensors = {name: tensor.detach() for name, tensor in call(preference=preference, alpha=(4, 1)).items()}
    log_preference = tensors.get("log_preference")
    templates = tensors["scale"] * tensors["key"]
    u = Discrete(templates, log_preference)
    options = {"tol": 1e-11} if estimator == "exact" else {}
    estimate = InferenceProblem(u, tensors["query"], tensors["alpha"]).solve(estimator, **options)
    output, certificate = F.attention_with_certificate(**tensors, estimator=estimator)
    torch.testing.assert_close(output, estimate.weights @ tensors["value"], rtol=1e-9, atol=1e-9)
    if estimator != "exact":
        torch.testing.assert_close(certificate.gap, estimate.gap, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(certificate.mean_error, estimate.mean_error, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(certificate.dual_error, estimate.dual_error, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 4), (3, 9), (40, 64), (1, 5)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_any_ratio_of_templates_to_dimensions(estimator: str, shape: tuple[int, int]) -> None:
    tensors = call(preference=(4, 1, shape[0]), keys=shape[0], dim=shape[1], alpha=(4, 1))
    found = F.attention(**tensors, estimator=estimator)
    expected = F.reference.attention(**tensors, estimator=estimator)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    slow = gradients(expected, tensors)
    for name, gradient in gradients(found, tensors).items():
        torch.testing.assert_close(
            gradient, slow[name], rtol=1e-7, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("as_mask", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_row_with_nothing_to_attend_to_gives_zeros_and_no_gradient(
    estimator: str, shape: tuple[int, ...], as_mask: bool
) -> None:
    tensors = call(preference=shape)
    preference = tensors["log_preference"].detach().clone()
    preference[..., 2, :] = -torch.inf
    tensors["log_preference"] = preference.requires_grad_()
    given: dict[str, Any] = dict(tensors)
    if as_mask:
        given["log_preference"] = preference > -torch.inf
        del tensors["log_preference"]
    output, certificate = F.attention_with_certificate(**given, estimator=estimator)
    assert bool((output[:, :, 2] == 0).all())
    assert bool((certificate.gap[:, :, 2] == 0).all())
    assert bool((F.attention_weights(**{k: v for k, v in given.items() if k != "value"})[:, :, 2] == 0).all())
    found = gradients(F.attention(**given, estimator=estimator), tensors)
    assert bool((found["query"][:, :, 2] == 0).all())
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    if not as_mask:
        assert bool((found["log_preference"][..., 2, :] == 0).all())
    others = dict(given)
    others["query"] = others["query"].detach().clone()
    others["query"][:, :, 2] += 5.0
    moved = gradients(F.attention(**others, estimator=estimator), {"key": tensors["key"]})
    torch.testing.assert_close(moved["key"], found["key"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_is_removed(estimator: str) -> None:
    tensors = call(masked=0.0)
    allowed = torch.tensor([True, False, True, True, False, True, False])
    masked = F.attention(**tensors, log_preference=allowed, estimator=estimator)
    kept = {**tensors, "key": tensors["key"][:, :, allowed], "value": tensors["value"][:, :, allowed]}
    torch.testing.assert_close(masked, F.attention(**kept, estimator=estimator), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_preferences_add_up_and_constants_do_not_matter(estimator: str) -> None:
    tensors = call(preference=(2, 4, 5, 7))
    shifted = {**tensors, "log_preference": tensors["log_preference"] + torch.randn(2, 4, 5, 1).double()}
    torch.testing.assert_close(
        F.attention(**shifted, estimator=estimator),
        F.attention(**tensors, estimator=estimator),
        rtol=1e-8,
        atol=1e-9,
    )


def test_exact_never_amplifies_its_evidence() -> None:
    # Fact 9: αz ↦ λ* is firmly non-expansive. With values the identity on templates, α(z + μ - ĥ) is λ*.
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(1, 1, 12, 6, dtype=torch.float64, generator=generator)
    evidence = torch.randn(1, 1, 30, 6, dtype=torch.float64, generator=generator) * 4
    mean = F.attention(evidence, key, key, scale=1.0, alpha=1.5, estimator="exact")
    dual = 1.5 * (evidence + key.mean(2, keepdim=True) - mean)
    assert bool((dual.norm(dim=-1) <= 1.5 * evidence.norm(dim=-1)).all())
    a, b = dual[:, :, :15] - dual[:, :, 15:], 1.5 * (evidence[:, :, :15] - evidence[:, :, 15:])
    assert bool(((a * b).sum(-1) >= a.square().sum(-1) - 1e-9).all())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_certificate_bounds(estimator: str) -> None:
    tensors = {n: t.detach() for n, t in call(preference=(2, 4, 5, 7), alpha=(4, 1), dim=6).items()}
    _, certificate = F.attention_with_certificate(**tensors, estimator=estimator)
    no_value = {name: tensor for name, tensor in tensors.items() if name != "value"}
    weights = F.reference.inferred_weights(**no_value, estimator=estimator)
    exact = F.reference.inferred_weights(**no_value, estimator="exact", steps=40)
    templates = tensors["scale"] * tensors["key"]
    distance = ((weights - exact) @ templates).norm(dim=-1)
    assert bool((distance <= certificate.mean_error + 1e-9).all())
    variation = (weights - exact).abs().sum(-1) / 2
    assert bool((variation <= (certificate.gap / 2).sqrt() + 1e-9).all())
    assert not certificate.gap.requires_grad


@pytest.mark.parametrize("preference", [None, (4, 1, 7), (4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_asking_for_the_certificate_changes_neither_output_nor_gradients(
    estimator: str, preference: tuple[int, ...] | None
) -> None:
    tensors = call(preference=preference)
    plain, with_certificate = (
        F.attention(**tensors, estimator=estimator),
        F.attention_with_certificate(**tensors, estimator=estimator)[0],
    )
    torch.testing.assert_close(with_certificate, plain, rtol=1e-12, atol=1e-12)
    expected = gradients(plain, tensors)
    for name, gradient in gradients(with_certificate, tensors).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        again, _ = F.attention_with_certificate(**tensors, estimator=estimator)
    torch.testing.assert_close(again, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weights_are_what_values_are_averaged_under(estimator: str) -> None:
    tensors = call(preference=(2, 1, 5, 7), key_heads=2)
    value = tensors.pop("value")
    weights = F.attention_weights(**tensors, estimator=estimator, enable_gqa=True)
    output = F.attention(**tensors, value=value, estimator=estimator, enable_gqa=True)
    torch.testing.assert_close(weights @ value.repeat_interleave(2, 1), output, rtol=1e-10, atol=1e-10)
    assert gradients(weights, tensors)["log_preference"].shape == (2, 1, 5, 7)


@pytest.mark.parametrize("wanting", [True, False])
def test_blocks_do_not_show(wanting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = call(preference=(2, 4, 5, 7), key_heads=2)
    if not wanting:
        tensors["log_preference"] = tensors["log_preference"].detach()
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}

    def everything() -> list[Tensor]:
        found = []
        for estimator in ESTIMATORS:
            output = F.attention(**tensors, estimator=estimator, enable_gqa=True)
            found += [output, *gradients(output, wanted).values()]
            with torch.no_grad():
                found += F.attention_with_certificate(**tensors, estimator=estimator, enable_gqa=True)[1]
        return found

    whole = everything()
    monkeypatch.setattr("fenchel.functional.exact.CACHE_BYTES", 2 * 7 * 8)
    for one, other in zip(everything(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_alpha_and_scale_are_two_arguments() -> None:
    tensors = {n: t.detach() for n, t in call().items()}
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    split = [F.attention(query, key, value, alpha=a, scale=s) for a, s in ((1.0, 0.6), (0.6, 1.0))]
    torch.testing.assert_close(*split)
    split = [
        F.attention(query, key, value, alpha=a, scale=s, estimator="exact")
        for a, s in ((1.0, 0.6), (0.6, 1.0))
    ]
    assert float((split[0] - split[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_a_preference_may_lie_in_any_order(estimator: str) -> None:
    query, key, value = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64).unbind()
    strided = torch.randn(2, 5, 5, 3, dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_()
    plain = strided.detach().contiguous().requires_grad_()
    found, expected = (
        F.attention(query, key, value, log_preference=one, estimator=estimator) for one in (strided, plain)
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(one.square().sum(), by)[0] for one, by in ((found, strided), (expected, plain)))
    )


def test_options_of_the_exact_estimator_matter() -> None:
    tensors = {n: t.detach() for n, t in call(dim=6).items()}
    errors = [
        float(F.attention_with_certificate(**tensors, estimator="exact", tol=tol)[1].dual_error.max())
        for tol in (1e-2, 1e-12)
    ]
    assert errors[0] > 1e3 * errors[1]
    with pytest.raises(ConvergenceError, match=r"queries did not reach dual_error .* within 1 steps"):
        F.attention(**tensors, estimator="exact", tol=1e-14, max_steps=1)


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
