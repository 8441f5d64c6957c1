"""Mixture attention against its slow twin, softmax attention, single Gaussians, finite differences and its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import ConvergenceError, GaussianMixture, InferenceProblem
from fenchel import functional as F
from fenchel.functional import problems
from tests.compiling import compiled_afresh
from tests.functional.calls import ESTIMATORS, PREFERENCES, call, directional_derivatives, gradients

ALPHAS: list[tuple[int, ...]] = [(), (4, 1), (2, 4, 5), (5,)]
TIGHT: dict[str, dict[str, Any]] = {e: {"tol": 1e-12} if e == "exact" else {} for e in ESTIMATORS}


def mixture(
    *, spherical: bool = False, value: bool = True, key_heads: int = 4, **options: Any
) -> dict[str, Any]:
    """Tensors of a call that all require gradients."""
    tensors = call(key_heads=key_heads, **options)
    tensors["means"] = tensors.pop("key")
    shape = (*tensors["means"].shape[:3], 1) if spherical else tensors["means"].shape
    generator = torch.Generator().manual_seed(1)
    spread = 2 * torch.rand(shape, dtype=tensors["query"].dtype, generator=generator)
    tensors["variances"] = spread.requires_grad_()
    if not value:
        del tensors["value"]
    return tensors


def detached(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


@pytest.mark.parametrize("at", range(2 * len(PREFERENCES)))
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_values_and_gradients_agree_with_the_reference(estimator: str, at: int) -> None:
    """Every preference with and without values; variances of both kinds."""
    at, value = divmod(at, 2)
    spherical = (at + value) % 2 == 1
    tensors = mixture(
        preference=PREFERENCES[at],
        alpha=ALPHAS[at % 4],
        key_heads=(4, 2, 1)[at % 3],
        spherical=spherical,
        value=value == 1,
    )
    found = F.mixture_attention(**tensors, estimator=estimator, enable_gqa=True, **TIGHT[estimator])
    expected = F.reference.mixture_attention(**tensors, estimator=estimator)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    slow = gradients(expected, tensors)
    for name, gradient in gradients(found, tensors).items():
        torch.testing.assert_close(
            gradient, slow[name], rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("preference", [None, (2, 4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_agree_with_finite_differences(estimator: str, preference: tuple[int, ...] | None) -> None:
    tensors = mixture(preference=preference, alpha=(4, 1), key_heads=2, masked=0.0, value=False)

    def function(**given: Any) -> Tensor:
        return F.mixture_attention(**given, estimator=estimator, enable_gqa=True, **TIGHT[estimator])

    for name, (numeric, analytic) in directional_derivatives(function, tensors).items():
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("preference", [None, (4, 1, 7), (2, 4, 5, 7)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_variance_it_is_softmax_attention(estimator: str, preference: tuple[int, ...] | None) -> None:
    tensors = detached(mixture(preference=preference, alpha=(4, 1)))
    tensors["variances"] = torch.zeros(1, dtype=torch.float64)
    means, value = tensors.pop("means"), tensors.pop("value")
    variances = tensors.pop("variances")
    for answer in (value, None):
        found = F.mixture_attention(
            means=means, variances=variances, value=answer, **tensors, estimator=estimator, **TIGHT[estimator]
        )
        values = means if answer is None else answer
        expected = F.attention(key=means, value=values, **tensors, estimator=estimator, **TIGHT[estimator])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_head_is_a_problem_with_a_mixture_for_its_preference(estimator: str, spherical: bool) -> None:
    tensors = detached(mixture(preference=(2, 4, 1, 7), alpha=(4, 1), spherical=spherical, value=False))
    scale = tensors["scale"]
    variances = tensors["variances"].expand(-1, -1, -1, 3) * scale**2
    answer, certificate = F.mixture_attention_with_certificate(
        **tensors, estimator=estimator, **TIGHT[estimator]
    )
    for b in range(2):
        for h in range(4):
            weights = tensors["log_preference"][b, h, 0].log_softmax(-1)
            u = GaussianMixture(scale * tensors["means"][b, h], variances[b, h], weights)
            problem = InferenceProblem(u, tensors["query"][b, h], tensors["alpha"][h])
            found = problem.solve(estimator, **({"tol": 1e-11} if estimator == "exact" else {}))
            torch.testing.assert_close(scale * answer[b, h], found.mean, rtol=1e-8, atol=1e-9)
            if estimator != "exact":
                torch.testing.assert_close(certificate.gap[b, h], found.gap, rtol=1e-6, atol=1e-9)


def test_variance_changes_who_answers_and_what() -> None:
    tensors = detached(mixture(value=False))
    certain = {**tensors, "variances": torch.zeros(1, dtype=torch.float64)}
    apart = F.mixture_attention(**tensors) - F.mixture_attention(**certain)
    assert float(apart.abs().max()) > 0.1


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_second_order_is_exact_for_one_gaussian(scale: float | None) -> None:
    """λ = α(I + αS)⁻¹z and E[x] = m + S'ς: section 5, for S = I is μ/(1 + α) + αb/(1 + α) with z = b - μ."""
    generator = torch.Generator().manual_seed(0)
    query, mean = (torch.randn(1, 2, n, 3, dtype=torch.float64, generator=generator) for n in (5, 1))
    alpha, variances = 0.7, torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    factor = 3**-0.5 if scale is None else scale
    dual = alpha * query / (1 + alpha * factor**2 * variances)
    expected = mean + variances * factor * dual
    for estimator in ("second_order", "exact"):
        options: dict[str, Any] = {"alpha": alpha, "scale": scale, "estimator": estimator, **TIGHT[estimator]}
        torch.testing.assert_close(F.mixture_attention(query, mean, variances, **options), expected)
    first = F.mixture_attention(query, mean, variances, alpha=alpha, scale=scale)
    torch.testing.assert_close(first, mean + variances * factor * alpha * query)
    unit = F.mixture_attention(
        query - mean, mean, torch.ones(1).double(), alpha=alpha, scale=1.0, estimator="exact"
    )
    torch.testing.assert_close(unit, (mean + alpha * query) / (1 + alpha))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_spherical_is_equal_variances(estimator: str) -> None:
    tensors = mixture(spherical=True, preference=(4, 5, 7), value=False)
    full = {**tensors, "variances": tensors["variances"].expand(-1, -1, -1, 3)}
    one, other = (
        F.mixture_attention(**given, estimator=estimator, **TIGHT[estimator]) for given in (tensors, full)
    )
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    wanted = gradients(other, tensors)
    for name, gradient in gradients(one, tensors).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("as_mask", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_is_removed_and_nothing_left_is_zeros(estimator: str, as_mask: bool) -> None:
    tensors = mixture(value=False)
    allowed = torch.ones(5, 7, dtype=torch.bool)
    allowed[:, [1, 4]] = False
    allowed[2] = False
    mask = allowed if as_mask else torch.zeros(5, 7).double().masked_fill(~allowed, -torch.inf)
    output, certificate = F.mixture_attention_with_certificate(
        **tensors, log_preference=mask, estimator=estimator, **TIGHT[estimator]
    )
    assert bool((output[:, :, 2] == 0).all())
    assert bool((certificate.gap[:, :, 2] == 0).all())
    found = gradients(output, tensors)
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    for name in ("means", "variances"):
        assert bool((found[name][:, :, [1, 4]] == 0).all())
    assert bool((found["query"][:, :, 2] == 0).all())
    kept = {**tensors, **{name: tensors[name][:, :, [0, 2, 3, 5, 6]] for name in ("means", "variances")}}
    expected = F.mixture_attention(**kept, estimator=estimator, **TIGHT[estimator])
    rows = [0, 1, 3, 4]
    torch.testing.assert_close(output[:, :, rows], expected[:, :, rows], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_certificate_bounds_and_changes_nothing(estimator: str, value: bool) -> None:
    tensors = mixture(preference=(2, 4, 5, 7), alpha=(4, 1), value=value)
    plain = F.mixture_attention(**tensors, estimator=estimator, **TIGHT[estimator])
    output, certificate = F.mixture_attention_with_certificate(
        **tensors, estimator=estimator, **TIGHT[estimator]
    )
    torch.testing.assert_close(output, plain, rtol=1e-12, atol=1e-12)
    wanted = gradients(plain, tensors)
    for name, gradient in gradients(output, tensors).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-10, atol=1e-12)
    assert not certificate.gap.requires_grad
    means = {name: tensor for name, tensor in detached(tensors).items() if name != "value"}
    scale, alpha = means["scale"], means["alpha"]
    h, best = (
        scale * F.reference.mixture_attention(**means, estimator=e, steps=40) for e in (estimator, "exact")
    )
    assert bool(((h - best).norm(dim=-1) <= certificate.mean_error + 1e-9).all())
    if estimator == "first_order":
        rest = F.reference.mixture_attention(**{**means, "query": torch.zeros_like(means["query"])})
        shift = (h - scale * rest).norm(dim=-1)
        torch.testing.assert_close(certificate.gap, alpha / 2 * shift.square())
        torch.testing.assert_close(certificate.dual_error, alpha * shift)
    if estimator == "exact":
        assert float(certificate.gap.max()) < 1e-18


@pytest.mark.parametrize("size", [1e-4, 1e-9, 1e-16])
def test_the_certificate_of_tiny_evidence_bounds_its_error(size: float) -> None:
    means = torch.tensor([[[[2.0, 0.0], [0.0, 2.0]]]])
    query = torch.tensor([[[[size, 2 * size]]]])
    _, certificate = F.mixture_attention_with_certificate(query, means, torch.tensor(3.0), scale=1.0)
    # h(λ) - μ = Σλ to second order, with Σ = 3I + Cov.
    covariance = torch.tensor([[4.0, -1.0], [-1.0, 4.0]])
    apart = float((covariance @ query[0, 0, 0]).norm())
    assert apart * (1 - 1e-3) <= float(certificate.mean_error[0, 0, 0]) <= 5 * apart


@pytest.mark.parametrize(("preference", "size"), [(None, 1e-5), ((5, 7), 1e-14)])
def test_exact_answers_of_tiny_evidence_are_those_of_second_order(
    preference: tuple[int, ...] | None, size: float
) -> None:
    """Whose error is of the order of its square; some queries are not tiny, and some are 0."""
    tensors = mixture(preference=preference, value=False)
    sizes = torch.tensor([1.0, size, size, 0.0, size], dtype=torch.float64).unsqueeze(-1)
    tensors["query"] = (tensors["query"].detach() * sizes).requires_grad_()
    tiny = (sizes.squeeze(-1) == size).nonzero().squeeze(-1)
    at_rest = F.mixture_attention(**{**tensors, "query": 0 * tensors["query"]})
    shifts, slopes = {}, {}
    for estimator in ("second_order", "exact"):
        found = F.mixture_attention(**tensors, estimator=estimator)
        shifts[estimator] = (found - at_rest)[:, :, tiny].detach()
        wanted = (tensors["query"], tensors["means"])
        slopes[estimator] = torch.autograd.grad(found[:, :, tiny].square().sum(), wanted)
    rounding, curved = 1e-14, 1e2 * size**2
    assert bool(shifts["exact"].abs().amax() > size / 10)
    torch.testing.assert_close(shifts["exact"], shifts["second_order"], rtol=0, atol=curved + rounding)
    for exact, second in zip(slopes["exact"], slopes["second_order"], strict=True):
        torch.testing.assert_close(exact, second, rtol=1e-3, atol=1e3 * size + 1e-8)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype, estimator: str) -> None:
    tensors = {
        n: t
        for n, t in detached(mixture(dtype=torch.float32, value=False)).items()
        if n not in ("alpha", "scale")
    }
    half = {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}
    wide = {name: tensor.detach().float().requires_grad_() for name, tensor in half.items()}
    found, expected = (F.mixture_attention(**given, estimator=estimator) for given in (half, wide))
    assert torch.equal(found, expected.to(dtype))
    slow = gradients(expected.to(dtype), wide)
    for name, gradient in gradients(found, half).items():
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, slow[name].to(dtype), rtol=2e-2, atol=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = F.mixture_attention(**tensors, estimator=estimator)
    assert cast.dtype == torch.bfloat16


def test_half_types_survive_evidence_whose_square_they_do_not_hold() -> None:
    query = torch.full((1, 1, 1, 2), 300.0, dtype=torch.float16)
    means = torch.zeros(1, 1, 2, 2, dtype=torch.float16)
    variances = torch.tensor([[1e-3], [1e-4]], dtype=torch.float16)
    output = F.mixture_attention(query, means, variances, scale=1.0)
    assert float(output[0, 0, 0, 0]) == pytest.approx(0.3, rel=1e-2)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = mixture(preference=(2, 4, 5, 7), key_heads=2, value=False)

    def everything() -> list[Tensor]:
        found = []
        for estimator in ESTIMATORS:
            output = F.mixture_attention(**tensors, estimator=estimator, enable_gqa=True, **TIGHT[estimator])
            found += [output, *gradients(output, tensors).values()]
        return found

    whole = everything()
    monkeypatch.setattr(problems, "PART_BYTES", 2 * 4 * 7 * 8 * 2)
    monkeypatch.setattr(problems, "LEAST_QUERIES", 2)
    monkeypatch.setattr("fenchel.functional.rows.CACHE_BYTES", 2 * 7 * 8)
    for one, other in zip(everything(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("spherical", "width"), [(False, None), (False, 2), (False, 9), (True, 2), (True, 9)]
)
def test_it_is_one_call_whose_widths_fused_kernels_take(
    spherical: bool, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's kernel on the CPU takes keys and values of one width; of others it makes (m, n) arrays."""
    fused = torch.nn.functional.scaled_dot_product_attention
    seen: list[tuple[int, int]] = []

    def watched(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        seen.append((key.shape[-1], value.shape[-1]))
        return fused(query, key, value, **options)

    monkeypatch.setattr("fenchel.functional.output.scaled_dot_product_attention", watched)
    tensors = detached(mixture(spherical=spherical, value=False))
    if width is not None:
        tensors["value"] = torch.randn(2, 4, 7, width, dtype=torch.float64)
    found = F.mixture_attention(**tensors)
    torch.testing.assert_close(found, F.reference.mixture_attention(**tensors), rtol=1e-9, atol=1e-9)
    assert len(seen) == 1
    assert seen[0][0] == seen[0][1]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weights_are_what_values_are_averaged_under(estimator: str) -> None:
    tensors = mixture(preference=(2, 1, 5, 7), key_heads=2)
    options: dict[str, Any] = {"estimator": estimator, "enable_gqa": True, **TIGHT[estimator]}
    output = F.mixture_attention(**tensors, **options)
    value = tensors.pop("value")
    weights = F.mixture_attention_weights(**tensors, **options)
    torch.testing.assert_close(weights @ value.repeat_interleave(2, 1), output, rtol=1e-10, atol=1e-10)
    assert gradients(weights, tensors)["log_preference"].shape == (2, 1, 5, 7)


def test_dropout_drops_responsibilities() -> None:
    tensors = detached(mixture(value=False))
    torch.manual_seed(0)
    outputs = torch.stack([F.mixture_attention(**tensors, dropout_p=0.3) for _ in range(1000)])
    torch.testing.assert_close(outputs.mean(0), F.mixture_attention(**tensors), rtol=0.1, atol=0.1)
    assert float(outputs.std(0).mean()) > 0.1


# Torch looks at what a graph breaks off at, hiding its own warning in a way that pytest does not see.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_compiled_training_step_is_that_of_eager(estimator: str) -> None:
    def step(**given: Any) -> Tensor:
        return F.mixture_attention(**given, estimator=estimator)

    fixed = ("alpha", "scale")
    tensors = {n: t for n, t in mixture(preference=(5, 7), value=False).items() if n not in fixed}
    with compiled_afresh():
        found = torch.compile(
            step,
            fullgraph=estimator == "first_order",
            backend="inductor" if estimator == "exact" else "aot_eager",
        )(**tensors)
        compiled = gradients(found, tensors)
    expected = step(**tensors)
    torch.testing.assert_close(found, expected)
    for name, gradient in gradients(expected, tensors).items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-6, atol=1e-8)


def test_without_queries_or_dimensions() -> None:
    means, variances = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4, 1)
    assert F.mixture_attention(torch.zeros(2, 3, 0, 5), means, variances).shape == (2, 3, 0, 5)
    value = torch.randn(2, 3, 4, 2)
    found, certificate = F.mixture_attention_with_certificate(
        torch.zeros(2, 3, 6, 0), means[..., :0], torch.zeros(1), value
    )
    torch.testing.assert_close(found, value.mean(2, keepdim=True).expand(2, 3, 6, 2))
    assert certificate.gap.shape == (2, 3, 6)


def test_a_sharp_problem_is_certified_or_says_so() -> None:
    generator = torch.Generator().manual_seed(0)
    query, means = (6 * torch.randn(1, 1, 8, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    variances = 9 * torch.rand(1, 1, 8, 4, dtype=torch.float64, generator=generator)
    _, certificate = F.mixture_attention_with_certificate(
        query, means, variances, scale=1.0, estimator="exact"
    )
    assert float(certificate.dual_error.max()) < 1e-8
    with pytest.raises(ConvergenceError, match=r"of 8 queries did not reach dual_error .* the variances or"):
        F.mixture_attention(query, means, variances, scale=1.0, estimator="exact", max_steps=1)


def test_a_nan_that_was_given_passes_through() -> None:
    query = torch.full((1, 1, 1, 2), math.nan)
    assert bool(F.mixture_attention(query, torch.ones(1, 1, 2, 2), torch.ones(1)).isnan().all())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_func_transforms(estimator: str) -> None:
    tensors = {n: t.detach() for n, t in mixture(value=False).items() if n not in ("alpha", "scale")}

    def loss(query: Tensor) -> Tensor:
        return (
            F.mixture_attention(query, tensors["means"], tensors["variances"], estimator=estimator)
            .sin()
            .sum()
        )

    leaf = tensors["query"].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(tensors["query"]), expected, rtol=1e-8, atol=1e-9)
