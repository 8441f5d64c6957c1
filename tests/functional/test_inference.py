"""One call, read in parts: every kind of attention answers alike, and as its functions do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel import Exact, FirstOrder, ProblemError, SecondOrder, Tsallis
from fenchel import functional as F

ESTIMATORS = (FirstOrder(), SecondOrder(), Exact(tol=1e-9))


def tensors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, 8, 4, dtype=torch.float64).requires_grad_() for _ in range(3))


def kinds() -> dict[str, dict[str, Any]]:
    torch.manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    buckets = torch.randint(0, 3, (2, 3, 2, 8))
    return {
        "plain": {},
        "masked": {"log_preference": mask},
        "sparse": {"closeness": Tsallis(1.5)},
        "relative": {"variant": F.Relative(drawn(1, 3, 15, 4), value_table=drawn(1, 3, 15, 4))},
        "relative sparse": {"variant": F.Relative(drawn(1, 3, 15, 4)), "closeness": Tsallis(2)},
        "mixture": {"variant": F.Mixture(drawn(2, 3, 8, 4).square())},
        "transport": {"variant": F.Transport(0.7, "squared_euclidean")},
        "atoms": {
            "variant": F.Transport(
                0.7, "cosine", drawn(1, 1, 5, 4), drawn(1, 1, 5, 4), torch.rand(8, 5) < 0.7
            ),
            "log_preference": mask,
        },
        "hashing": {"variant": F.Hashing(buckets, chunk=4, causal=True)},
    }


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", kinds())
def test_parts_of_an_inference_agree(kind, estimator):
    options, (q, k, v) = kinds()[kind], tensors()
    found = F.infer(q, k, v, estimator=estimator, **options)
    values = v
    variant = options.get("variant")
    if isinstance(variant, F.Transport) and variant.atom_values is not None:
        values = torch.cat([v, variant.atom_values.expand(2, 3, -1, -1)], -2)
    expected = found.weights @ values
    if isinstance(variant, F.Relative) and variant.value_table is not None:
        pairs = torch.arange(8) - torch.arange(8).unsqueeze(1) + 7
        expected = expected + torch.einsum("bhij,hijd->bhid", found.weights, variant.value_table[0][:, pairs])
    torch.testing.assert_close(found.output, expected)
    assert found.dual.shape == q.shape
    bounds = found.certificate
    assert not bounds.gap.requires_grad
    assert bounds.gap.shape == (2, 3, 8)
    # Bounds hold for the distance from a closer answer.
    closer = F.infer(q, k, v, estimator=Exact(tol=1e-11), **options)
    assert bool(((found.dual - closer.dual).norm(dim=-1) <= bounds.dual_error + 1e-9).all())
    if estimator.name == "exact":
        with pytest.raises(ProblemError, match="estimator"):
            _ = found.gap
    else:
        assert bool((found.gap <= bounds.gap + 1e-12).all())
        torch.testing.assert_close(found.gap.detach(), bounds.gap, rtol=1e-5, atol=1e-10)
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(found.gap.sum(), (q, k), retain_graph=True))
    gradients = torch.autograd.grad(found.output.square().sum(), (q, k, v))
    assert all(bool(g.isfinite().all()) and g.abs().sum() > 0 for g in gradients)
    output, certificate = F.infer(q, k, v, estimator=estimator, **options).certified()
    torch.testing.assert_close((output, *certificate), (found.output, *bounds))
    again = torch.autograd.grad(output.square().sum(), (q, k, v))
    torch.testing.assert_close(again, gradients)


@pytest.mark.parametrize("kind", ["plain", "relative", "mixture", "transport", "hashing"])
def test_gradients_of_the_gap_are_those_of_finite_differences(kind):
    options, (q, k, _) = kinds()[kind], tensors()
    q, k = (x.detach()[:1, :, :, :2].clone().requires_grad_() for x in (q, k))
    if kind == "relative":
        options["variant"] = F.Relative(options["variant"].table[..., :2])
    if kind == "mixture":
        options["variant"] = F.Mixture(kinds()[kind]["variant"].variances[:1, ..., :2])
    if kind == "hashing":
        options["variant"] = F.Hashing(kinds()[kind]["variant"].buckets[:1], chunk=4)

    def gap(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.infer(q, k, estimator="second_order", **options).gap.sum(-1)

    assert torch.autograd.gradcheck(gap, (q, k))


@pytest.mark.parametrize("kind", kinds())
def test_a_query_that_may_use_nothing_gets_zeros(kind):
    options, (q, k, v) = kinds()[kind], tensors()
    if kind == "hashing":
        pytest.skip("a token always meets itself")
    nothing = torch.ones(8, 8, dtype=torch.bool)
    nothing[2] = False
    options["log_preference"] = nothing
    for estimator in ESTIMATORS:
        found = F.infer(q, k, v, estimator=estimator, **options)
        for part in (found.dual, found.output, found.weights, *found.certificate):
            assert bool((part[:, :, 2] == 0).all())


def test_no_value_means_no_output_and_each_part_is_computed_once():
    q, k, v = tensors()
    found = F.infer(q, k)
    with pytest.raises(ProblemError, match="value"):
        _ = found.output
    assert found.weights is found.weights
    torch.testing.assert_close(found.certificate, F.infer(q, k, v).certificate)
    assert F.infer(q, k, variant=F.Mixture(torch.ones(1).double())).output.shape == q.shape


def test_compiles_in_one_graph():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))

    def answer(q, k, v):
        found = F.infer(q, k, v, estimator=Exact(tol=1e-4))
        output, certificate = found.certified()
        return output, certificate.gap, found.weights

    torch._dynamo.reset()
    compiled = torch.compile(answer, fullgraph=True, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(compiled, answer(q, k, v))
