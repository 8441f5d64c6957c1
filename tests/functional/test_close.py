"""Attention under closenesses: the entmax package, softmax, the largest score, one of somebody's own, and memory."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import (
    KL,
    Divergence,
    Hard,
    ProblemError,
    Tsallis,
)
from fenchel import functional as F
from tests.functional.calls import ESTIMATORS, call, gradients
from tests.functional.ops import TIGHT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_it_is_entmax_of_the_scores(name: str, dtype: torch.dtype) -> None:
    entmax = pytest.importorskip("entmax")
    theirs = {"sparsemax": entmax.sparsemax, "entmax15": entmax.entmax15}[name]
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 40, 8, generator=generator, dtype=dtype) for _ in range(3))
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    mine = [x.clone().requires_grad_() for x in (query, key, value)]
    other = [x.clone().requires_grad_() for x in (query, key, value)]
    found = F.attention(
        *mine, log_preference=causal, closeness=Tsallis({"sparsemax": 2, "entmax15": 1.5}[name])
    )
    scores = (other[0] @ other[1].mT / 8**0.5).masked_fill(~causal, -torch.inf)
    expected = theirs(scores, -1) @ other[2]
    close: dict[str, Any] = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    )
    torch.testing.assert_close(found, expected, **close)
    for one, two in zip(mine, other, strict=True):
        both = [
            torch.autograd.grad(o.sin().sum(), x, retain_graph=True)[0]
            for o, x in ((found, one), (expected, two))
        ]
        torch.testing.assert_close(*both, **close)


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
    for estimator in ("second_order", "exact"):
        with pytest.raises(
            ProblemError, match=r"Hard\(\), whose weights jump, .*expected estimator='first_order'"
        ):
            F.attention(**tensors, value=value, closeness=Hard(), estimator=estimator)


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
