"""Certificates of attention in float32 against the duality gap in float64: rounding is in the bounds."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import KL, Divergence, Hard, ProblemError, Tsallis
from fenchel import functional as F
from tests.functional.calls import ESTIMATORS, call, gradients
from tests.functional.ops import OPS, TIGHT, infer, judged
from tests.normal import drawn

SIZES = ((5, 7, 3), (1, 2, 1), (5, 33, 8), (1, 150, 64), (5, 3, 2))
"""Queries, keys and dimensions."""


@pytest.mark.parametrize("name", [name for name in OPS if not name.startswith("transport")])
def test_no_bound_of_an_op_in_float32_is_below_that_of_its_problem_in_float64(name: str) -> None:
    """Whatever the sizes of evidence and templates, and however far these are from 0; nor is it far above."""
    op, ratios = OPS[name], []
    softmax = op is OPS["softmax"]
    for seed in range(100 if softmax else 12):
        m, n, d = SIZES[seed % 5] if softmax else (op.queries, 7, 3)
        spread, offset = 10.0 ** (seed % 4 - 2), (0.0, 3.0, 300.0)[seed // 4 % 3]
        given = op.call(
            preference=(None, (n,), (m, n), (4, 1, n))[seed % 4],
            alpha=((), (4, 1))[seed % 2],
            dtype=torch.float32,
            seed=seed,
            queries=m,
            keys=n,
            dim=d,
        )
        tensors = {part: x.detach() for part, x in given.items()} | {"scale": torch.ones(())}
        tensors["query"] = 10.0 ** (seed % 5 - 3) / spread * tensors["query"]
        if "log_preference" in tensors:
            tensors["log_preference"] += (0.0, -1e4, 300.0)[seed % 3]
        if seed % 7 == 0:
            tensors["query"].requires_grad_()
        moved = {part: spread * (tensors[part] + offset) for part in ("key", "table") if part in tensors}
        tensors |= moved
        if "variances" in tensors:
            tensors["variances"] = spread**2 * tensors["variances"]
        bounds = infer(op, tensors, "first_order").certificate
        truth, *_ = judged(op, {part: x.detach().double() for part, x in tensors.items()}, "first_order")
        for part, bound in bounds._asdict().items():
            least = getattr(truth, part).reshape(bound.shape)
            assert bool((bound.double() >= (1 - 1e-6) * least).all()), (seed, part)
        least = truth.mean_error.reshape(bounds.mean_error.shape)
        ratios.append((bounds.mean_error.double() / least)[least > 1e-9 * spread])
    assert float(torch.cat(ratios).quantile(0.8)) < 1.05


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_an_offset_of_the_keys_changes_no_bound(estimator: str) -> None:
    """Keys are multiples of 1/16, so that the offset rounds nothing."""
    query, key = drawn(1, 2, 6, 8).float(), drawn(1, 2, 20, 8, seed=1, scale=16).round().float() / 16
    for mask in (None, drawn(20, seed=2).float(), drawn(6, 20, seed=3).float()):
        options: dict[str, Any] = {"log_preference": mask, "estimator": estimator}
        expected = F.attention_with_certificate(query, key, key, **options)[1]
        found = F.attention_with_certificate(query, key + 512, key, **options)[1]
        if estimator == "exact":
            assert bool((found.dual_error <= 2e-5 * query.norm(dim=-1)).all())
        else:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
            gaps = (F.gap(0.1 * query, at, **options) for at in (key + 512, key))
            torch.testing.assert_close(*gaps, rtol=2e-3, atol=0)


def test_what_is_masked_for_all_queries_of_a_head_does_not_loosen_the_bounds() -> None:
    query, key = drawn(1, 4, 3, 8).float(), drawn(1, 4, 12, 8, seed=1).float()
    kept = torch.arange(12) < 9
    key[:, :, ~kept] = 1e4
    alone = F.attention_with_certificate(query, key[:, :, kept], key[:, :, kept])[1]
    for mask in (kept, torch.where(kept, 0.0, -torch.inf)):
        found = F.attention_with_certificate(query, key, key, log_preference=mask)[1]
        torch.testing.assert_close(found, alone, rtol=1e-3, atol=0)


def test_fast_products_are_allowed_for() -> None:
    """Where torch is told to round the factors of float32 products, bounds allow for it, used or not."""
    query, key = drawn(1, 2, 5, 16).float(), drawn(1, 2, 40, 16, seed=1).float()
    usual = F.attention_with_certificate(query, key, key)[1]
    torch.set_float32_matmul_precision("medium")
    try:
        fast = F.attention_with_certificate(query, key, key)[1]
    finally:
        torch.set_float32_matmul_precision("highest")
    truth = F.attention_with_certificate(*(x.double() for x in (query, key, key)))[1].mean_error
    assert bool((fast.mean_error.double() >= (1 - 1e-6) * truth).all())
    assert bool((fast.mean_error > usual.mean_error + 1e-4).all())


def test_a_compiled_certificate_has_the_same_allowance() -> None:
    query, key = drawn(1, 2, 5, 16).float(), drawn(1, 2, 40, 16, seed=1).float()
    compiled = torch.compile(F.attention_with_certificate, fullgraph=True, backend="aot_eager")
    found, expected = (function(query, key, key)[1] for function in (compiled, F.attention_with_certificate))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


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
    ours, theirs = (gradients(output, tensors) for output in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)
    wrong = Divergence(hot.value, hot.conjugate, lambda f, log_u: kl.weights(f, log_u), modulus=2.0)
    with pytest.raises(ProblemError):
        F.attention(**{n: t.detach() for n, t in tensors.items()}, closeness=wrong, **options)
