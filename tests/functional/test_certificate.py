"""Certificates of attention in float32 against the duality gap in float64: rounding is in the bounds."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fenchel import KL, Discrete, Divergence, Hard, InferenceProblem, ProblemError, Tsallis
from fenchel import functional as F
from tests.functional.calls import ESTIMATORS, call, gradients
from tests.functional.ops import OPS, TIGHT, infer, judged


class Drawn(NamedTuple):
    query: Tensor
    key: Tensor
    log_preference: Tensor | None
    alpha: float | Tensor


def drawn(seed: int) -> Drawn:
    """A call in float32 whose keys share an offset of up to a thousand times their spread, all sizes at random."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    n, d, m = one_of(2, 3, 7, 33, 150), one_of(1, 2, 8, 64), one_of(1, 5)
    spread, offset = 10 ** number(-2, 2), one_of(0.0, 10 ** number(-1, 3))
    key = spread * (normal(1, 2, n, d) + offset * normal(1, 2, 1, d))
    query = normal(1, 2, m, d)
    query = query / query.norm(dim=-1, keepdim=True) * 10 ** number(-6, 2) / spread
    masks = {
        "none": None,
        "bool": torch.rand(1, 1, m, n, generator=generator) < 0.7,
        "shared": normal(n) * one_of(1, 10),
        "own": normal(2, m, n) * one_of(1, 10),
        "far": normal(m, n) + one_of(-1e4, 300.0),
    }
    mask = masks[one_of(*masks)]
    if mask is not None and mask.dtype == torch.bool:
        mask[..., 0] = True
    return Drawn(query, key, mask, one_of(1.0, 0.3, 20.0, torch.rand(2, 1, generator=generator) + 0.1))


def gradient_norms(call: Drawn) -> tuple[Tensor, Tensor]:
    """The norm of the dual's gradient at λ = αz and α, (2, m) in float64."""
    query, key = call.query[0].double(), call.key[0].double()
    log_u = torch.zeros(1, key.shape[1], dtype=torch.float64)
    if call.log_preference is not None:
        given = call.log_preference
        log_u = torch.where(given, 0.0, -torch.inf) if given.dtype == torch.bool else given
        log_u = (
            log_u.double().reshape(-1, *log_u.shape[-2:]) if log_u.dim() > 1 else log_u.double().unsqueeze(0)
        )
    log_u = log_u.expand(2, -1, -1) if log_u.dim() == 3 else log_u.expand(2, query.shape[1], -1)
    alpha = call.alpha.double() if isinstance(call.alpha, Tensor) else torch.full((2, 1), call.alpha).double()
    alpha = alpha.expand(2, query.shape[1])
    preference = Discrete(key - key.mean(-2, keepdim=True), log_u)
    problem = InferenceProblem(preference, query, alpha)
    return problem.dual_gradient(alpha.unsqueeze(-1) * query).norm(dim=-1), alpha


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("trained", [False, True])
def test_no_bound_is_below_the_truth_and_they_are_close_to_it(part: int, trained: bool) -> None:
    ratios = []
    for seed in range(50 * part, 50 * (part + 1)):
        call = drawn(seed)
        query = call.query.requires_grad_(trained)
        options = {"log_preference": call.log_preference, "alpha": call.alpha, "scale": 1.0}
        _, certificate = F.attention_with_certificate(query, call.key, call.key, **options)
        norm, alpha = gradient_norms(Drawn(query.detach(), *call[1:]))
        for bound, truth in zip(certificate, (alpha / 2 * norm.square(), norm, alpha * norm), strict=True):
            # What is below float32's range is not 0.
            assert bool((bound[0].double() >= truth).all()), (seed, call)
            assert bool(((bound[0] == 0) == (truth == 0)).all()) or bool((truth < 1e-30).any())
        ratios.append((certificate.mean_error[0].double() / norm)[norm > 0])
    assert float(torch.cat(ratios).median()) < 1.02


@pytest.mark.parametrize("name", [name for name in OPS if not name.startswith("transport")])
def test_no_bound_of_an_op_in_float32_is_below_that_of_its_problem_in_float64(name: str) -> None:
    """Whatever the sizes of evidence and templates, and however far these are from 0."""
    op, ratios = OPS[name], []
    for seed in range(12):
        spread, offset = 10.0 ** (seed % 4 - 2), (0.0, 3.0, 300.0)[seed // 4]
        drawn = op.call(preference=((5, 7), None, (4, 1, 7))[seed % 3], dtype=torch.float32, seed=seed)
        tensors = {part: x.detach() for part, x in drawn.items()} | {"scale": torch.ones(())}
        tensors["query"] = 10.0 ** (seed % 5 - 3) / spread * tensors["query"]
        moved = {part: spread * (tensors[part] + offset) for part in ("key", "table") if part in tensors}
        tensors |= moved
        if "variances" in tensors:
            tensors["variances"] = spread**2 * tensors["variances"]
        bounds = infer(op, tensors, "first_order").certificate
        truth, *_ = judged(op, {part: x.double() for part, x in tensors.items()}, "first_order")
        for part, bound in bounds._asdict().items():
            least = getattr(truth, part).reshape(bound.shape)
            assert bool((bound.double() >= (1 - 1e-6) * least).all()), (seed, part)
        least = truth.mean_error.reshape(bounds.mean_error.shape)
        ratios.append((bounds.mean_error.double() / least)[least > 1e-9 * spread])
    assert float(torch.cat(ratios).quantile(0.8)) < 1.05


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_an_offset_of_the_keys_changes_no_bound(estimator: str) -> None:
    """Keys are multiples of 1/16, so that the offset rounds nothing."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 6, 8, generator=generator)
    key = (torch.randn(1, 2, 20, 8, generator=generator) * 16).round() / 16
    for mask in (None, torch.randn(20, generator=generator), torch.randn(6, 20, generator=generator)):
        options: dict[str, Any] = {"log_preference": mask, "estimator": estimator}
        expected = F.attention_with_certificate(query, key, key, **options)[1]
        found = F.attention_with_certificate(query, key + 512, key, **options)[1]
        if estimator == "exact":
            assert bool((found.dual_error <= 2e-5 * query.norm(dim=-1)).all())
        else:
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=0)
            gaps = (F.gap(0.1 * query, at, **options) for at in (key + 512, key))
            torch.testing.assert_close(*gaps, rtol=2e-3, atol=0)


def test_what_is_masked_for_all_queries_of_a_head_does_not_loosen_the_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 4, n, 8, generator=generator) for n in (3, 12))
    kept = torch.arange(12) < 9
    key[:, :, ~kept] = 1e4
    alone = F.attention_with_certificate(query, key[:, :, kept], key[:, :, kept])[1]
    for mask in (kept, torch.where(kept, 0.0, -torch.inf)):
        found = F.attention_with_certificate(query, key, key, log_preference=mask)[1]
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=0)


def test_fast_products_are_allowed_for() -> None:
    """Where torch is told to round the factors of float32 products, bounds allow for it, used or not."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, n, 16, generator=generator) for n in (5, 40))
    usual = F.attention_with_certificate(query, key, key)[1]
    torch.set_float32_matmul_precision("medium")
    try:
        fast = F.attention_with_certificate(query, key, key)[1]
    finally:
        torch.set_float32_matmul_precision("highest")
    norm, _ = gradient_norms(Drawn(query, key / 4, None, 1.0))
    assert bool((fast.mean_error[0].double() >= norm).all())
    assert bool((fast.mean_error > usual.mean_error + 1e-4).all())


def test_a_compiled_certificate_has_the_same_allowance() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, n, 16, generator=generator) for n in (5, 40))
    compiled = torch.compile(F.attention_with_certificate, fullgraph=True, backend="aot_eager")
    found, expected = (function(query, key, key)[1] for function in (compiled, F.attention_with_certificate))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_is_what_attention_is_without(estimator: str) -> None:
    tensors = call(preference=(2, 4, 5, 7))
    plain = F.attention(**tensors, estimator=estimator)
    assert torch.equal(F.attention(**tensors, closeness=KL(), estimator=estimator), plain)
    near = F.attention(**tensors, closeness=Tsallis(1), estimator=estimator)
    torch.testing.assert_close(near, plain, rtol=1e-8, atol=1e-9)
    apart = F.attention(**tensors, closeness=Tsallis(1.5), estimator=estimator)
    assert float((apart - plain).detach().abs().max()) > 1e-2


def test_no_array_of_queries_by_keys_outlives_its_part() -> None:
    """What the backward pass keeps is linear in the tokens."""
    query, key, value = torch.randn(3, 1, 2, 512, 4).requires_grad_().unbind(0)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    for estimator in ESTIMATORS:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            F.attention(query, key, value, closeness=Tsallis(1.5), estimator=estimator)
    assert max(kept) < 512 * 512


def test_hard_attention_is_the_largest_score_and_first_order_only() -> None:
    tensors = {n: t.detach() for n, t in call(preference=(2, 4, 5, 7)).items()}
    value = tensors.pop("value").requires_grad_()
    output = F.attention(**tensors, value=value, closeness=Hard())
    scores = tensors["alpha"] * tensors["scale"] * tensors["query"] @ tensors["key"].mT
    chosen = scores.masked_fill(tensors["log_preference"].isneginf(), -torch.inf).argmax(-1)
    expected = value.gather(2, chosen.unsqueeze(-1).expand(-1, -1, -1, 2))
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    assert value.grad is not None


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_closeness_of_ones_own(estimator: str) -> None:
    """Twice Kullback and Leibler's is softmax attention at templates and evidence that are smaller by √2."""
    kl = KL()
    hot = Divergence(
        value=lambda p, log_u: 2 * kl.value(p, log_u),
        conjugate=lambda f, log_u: 2 * kl.conjugate(f / 2, log_u),
        weights=lambda f, log_u: kl.weights(f / 2, log_u),
        modulus=2.0,
    )
    tensors = call(preference=(2, 4, 5, 7), key_heads=2)
    options: dict[str, Any] = {"enable_gqa": True, "estimator": estimator, **TIGHT[estimator]}
    found = F.attention(**tensors, closeness=hot, **options)
    halved = {**tensors, "query": tensors["query"] / 2**0.5, "scale": tensors["scale"] / 2**0.5}
    expected = F.attention(**halved, **options)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    slow = gradients(expected, tensors)
    for name, gradient in gradients(found, tensors).items():
        torch.testing.assert_close(gradient, slow[name], rtol=1e-7, atol=1e-8)
    wrong = Divergence(hot.value, hot.conjugate, lambda f, log_u: kl.weights(f, log_u), modulus=2.0)
    with pytest.raises(ProblemError):
        F.attention(**{n: t.detach() for n, t in tensors.items()}, closeness=wrong, **options)
