"""Attention under closenesses: against problems of the core, the entmax package, finite differences and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import (
    KL,
    Discrete,
    Divergence,
    Hard,
    InferenceProblem,
    ProblemError,
    Tsallis,
)
from fenchel import functional as F
from fenchel.closeness import AbstractCloseness
from fenchel.functional import problems
from tests.compiling import compiled_afresh
from tests.functional.calls import ESTIMATORS, PREFERENCES, call, directional_derivatives, gradients

CLOSENESSES: dict[str, Callable[[], AbstractCloseness]] = {
    "sparsemax": lambda: Tsallis(2),
    "entmax15": lambda: Tsallis(1.5),
    "csiszar": lambda: Tsallis(1.3, relative="csiszar", temperature=0.5),
    "softmax": lambda: Tsallis(1, temperature=1.5),
    "a head": lambda: Tsallis(
        torch.tensor([[1.2], [1.5], [1.8], [2.0]]).double(),
        temperature=torch.tensor([[0.6], [1.4], [0.9], [1.1]]).double(),
    ),
}
TIGHT: dict[str, dict[str, Any]] = {e: {"tol": 1e-11} if e == "exact" else {} for e in ESTIMATORS}


def estimate(tensors: dict[str, Any], closeness: AbstractCloseness, estimator: str) -> Any:
    """The same problems by the problem API."""
    given = {name: tensor.detach() for name, tensor in tensors.items()}
    key = given["key"].repeat_interleave(4 // given["key"].shape[1], 1)
    believed = Discrete(given["scale"] * key, given.get("log_preference"))
    problem = InferenceProblem(believed, given["query"], given["alpha"], closeness=closeness)
    return problem.solve(estimator, **TIGHT[estimator])


@pytest.mark.parametrize("at", range(len(PREFERENCES)))
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_row_is_an_inference_problem(estimator: str, at: int) -> None:
    closeness, preference = list(CLOSENESSES.values())[at % len(CLOSENESSES)](), PREFERENCES[at]
    tensors = call(preference=preference, alpha=[(), (4, 1), (2, 4, 5)][at % 3], key_heads=(4, 2, 1)[at % 3])
    options: dict[str, Any] = {"closeness": closeness, "estimator": estimator, "enable_gqa": True}
    found = estimate(tensors, closeness, estimator)
    value = tensors["value"].detach().repeat_interleave(4 // tensors["value"].shape[1], 1)
    output, certificate = F.attention_with_certificate(**tensors, **options, **TIGHT[estimator])
    torch.testing.assert_close(output, found.weights @ value, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(F.attention(**tensors, **options, **TIGHT[estimator]), output)
    tensors.pop("value")
    weights = F.attention_weights(**tensors, **options, **TIGHT[estimator])
    torch.testing.assert_close(weights, found.weights, rtol=1e-8, atol=1e-9)
    if estimator != "exact":
        for bound in ("gap", "mean_error", "dual_error"):
            torch.testing.assert_close(
                getattr(certificate, bound), getattr(found, bound), rtol=1e-7, atol=1e-10
            )
        torch.testing.assert_close(F.gap(**tensors, **options), certificate.gap, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "preference"), [("sparsemax", (2, 4, 5, 7)), ("entmax15", None), ("csiszar", (2, 4, 5, 7))]
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_agree_with_finite_differences(
    name: str, estimator: str, preference: tuple[int, ...] | None
) -> None:
    tensors = call(preference=preference, alpha=(4, 1), key_heads=2, masked=0.0)
    if name != "sparsemax":  # whose order cannot be moved to both sides
        tensors["order"] = torch.tensor([[1.2], [1.5], [1.6], [1.9]]).double().requires_grad_()
    tensors["temperature"] = torch.tensor(0.8).double().requires_grad_()

    def function(order: float | Tensor = 2.0, temperature: float | Tensor = 1.0, **given: Any) -> Tensor:
        near = Tsallis(order, "csiszar" if name == "csiszar" else "bregman", temperature)
        options: dict[str, Any] = {"tol": 1e-11} if estimator == "exact" else {}
        return F.attention(**given, closeness=near, estimator=estimator, enable_gqa=True, **options)

    for argument, (numeric, analytic) in directional_derivatives(function, tensors, step=3e-5).items():
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-6), argument


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
    found = F.attention(*mine, log_preference=causal, closeness=CLOSENESSES[name]())
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


@pytest.mark.parametrize(("name", "as_mask"), [(name, name != "csiszar") for name in CLOSENESSES])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_is_removed_and_nothing_left_is_zeros(name: str, estimator: str, as_mask: bool) -> None:
    tensors = call()
    allowed = torch.ones(5, 7, dtype=torch.bool)
    allowed[:, [1, 4]] = False
    allowed[2] = False
    mask = allowed if as_mask else torch.zeros(5, 7).double().masked_fill(~allowed, -torch.inf)
    options: dict[str, Any] = {"closeness": CLOSENESSES[name](), "estimator": estimator, **TIGHT[estimator]}
    output, certificate = F.attention_with_certificate(**tensors, log_preference=mask, **options)
    weights = F.attention_weights(
        **{n: t for n, t in tensors.items() if n != "value"}, log_preference=mask, **options
    )
    assert bool((weights[..., [1, 4]] == 0).all())
    assert bool(
        (weights[:, :, 2] == 0).all() & (output[:, :, 2] == 0).all() & (certificate.gap[:, :, 2] == 0).all()
    )
    found = gradients(output, tensors)
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())
    assert bool((found["key"][:, :, [1, 4]] == 0).all() & (found["query"][:, :, 2] == 0).all())
    kept = {**tensors, **{n: tensors[n][:, :, [0, 2, 3, 5, 6]] for n in ("key", "value")}}
    expected = F.attention(**kept, **options)
    rows = [0, 1, 3, 4]
    torch.testing.assert_close(output[:, :, rows], expected[:, :, rows], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_certificate_bounds(estimator: str) -> None:
    tensors = {n: t.detach() for n, t in call(preference=(2, 4, 5, 7), alpha=(4, 1), dim=6).items()}
    options: dict[str, Any] = {"closeness": Tsallis(1.5)}
    _, certificate = F.attention_with_certificate(**tensors, **options, estimator=estimator)
    given = {n: t for n, t in tensors.items() if n != "value"}
    weights, exact = (F.attention_weights(**given, **options, estimator=e) for e in (estimator, "exact"))
    distance = ((weights - exact) @ (tensors["scale"] * tensors["key"])).norm(dim=-1)
    assert bool((distance <= certificate.mean_error + 1e-8).all())
    assert not certificate.gap.requires_grad


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype, estimator: str) -> None:
    tensors = {n: t.detach() for n, t in call(dtype=torch.float32).items() if n not in ("alpha", "scale")}
    half = {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}
    wide = {name: tensor.detach().float().requires_grad_() for name, tensor in half.items()}
    options: dict[str, Any] = {"closeness": Tsallis(1.5), "estimator": estimator}
    found, expected = (F.attention(**given, **options) for given in (half, wide))
    assert torch.equal(found, expected.to(dtype))
    slow = gradients(expected.to(dtype), wide)
    for name, gradient in gradients(found, half).items():
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, slow[name].to(dtype), rtol=2e-2, atol=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.attention(**tensors, **options).dtype == torch.bfloat16


def test_parts_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = call(preference=(2, 4, 5, 7), key_heads=2)

    def everything() -> list[Tensor]:
        found = []
        for estimator in ESTIMATORS:
            options: dict[str, Any] = {
                "closeness": CLOSENESSES["a head"](),
                "estimator": estimator,
                "enable_gqa": True,
            }
            torch.manual_seed(0)
            output = F.attention(**tensors, **options, **TIGHT[estimator])
            found += [output, *gradients(output, tensors).values()]
            with torch.no_grad():
                found += F.attention_with_certificate(**tensors, **options, **TIGHT[estimator])[1]
        return found

    whole = everything()
    monkeypatch.setattr(problems, "LEAST_QUERIES", 2)
    monkeypatch.setattr(problems, "PART_BYTES", 1)
    monkeypatch.setattr(problems, "LARGEST_BYTES", 1)
    for one, other in zip(everything(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-8)


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


def test_dropout_drops_weights_the_same_forwards_and_backwards() -> None:
    tensors = call()
    torch.manual_seed(0)
    outputs = F.attention(**tensors, closeness=Tsallis(1.5), dropout_p=0.5)
    (to_value,) = torch.autograd.grad(outputs.sum(), tensors["value"])
    # Linear in the values, so that the gradient tells which weights were dropped.
    again = (to_value * tensors["value"]).sum()
    torch.testing.assert_close(again, outputs.sum())
    assert float((outputs - F.attention(**tensors, closeness=Tsallis(1.5))).detach().abs().max()) > 0.1


# Torch looks at what a graph breaks off at, hiding its own warning in a way that pytest does not see.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_training_step_is_that_of_eager() -> None:
    """With torch's own backend: tests/nn/test_closeness.py."""
    tensors = {n: t for n, t in call(preference=(5, 7)).items() if n not in ("alpha", "scale")}
    tensors["order"] = torch.tensor([[1.2], [1.5], [1.8], [2.0]]).double().requires_grad_()

    def step(order: Tensor, **given: Any) -> Tensor:
        return F.attention(**given, closeness=Tsallis(order), estimator="exact", tol=1e-11)

    with compiled_afresh():
        found = torch.compile(step, backend="aot_eager")(**tensors)
        compiled = gradients(found, tensors)
    expected = step(**tensors)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    for argument, gradient in gradients(expected, tensors).items():
        torch.testing.assert_close(compiled[argument], gradient, rtol=1e-6, atol=1e-8)


def test_orders_are_learned_by_heads() -> None:
    """Two heads whose answers were made by sparsemax and by softmax find out which."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(4, 2, 16, 8, generator=generator) for _ in range(3))
    truth = F.attention(query, key, value, scale=1.0, closeness=Tsallis(torch.tensor([[1.9], [1.1]])))
    raw = torch.zeros(2, 1, requires_grad=True)
    optimiser = torch.optim.Adam([raw], lr=0.2)
    for _ in range(120):
        optimiser.zero_grad()
        near = Tsallis(1 + raw.sigmoid())
        (F.attention(query, key, value, scale=1.0, closeness=near) - truth).square().mean().backward()
        optimiser.step()
    torch.testing.assert_close(1 + raw.detach().sigmoid(), torch.tensor([[1.9], [1.1]]), rtol=0, atol=0.03)


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


def test_without_queries() -> None:
    key = torch.randn(2, 3, 4, 5)
    for estimator in ESTIMATORS:
        found = F.attention(torch.zeros(2, 3, 0, 5), key, key, closeness=Tsallis(2), estimator=estimator)
        assert found.shape == (2, 3, 0, 5)


def test_func_transforms_at_first_order() -> None:
    tensors = {n: t.detach() for n, t in call().items() if n not in ("alpha", "scale")}

    def loss(query: Tensor) -> Tensor:
        return F.attention(query, tensors["key"], tensors["value"], closeness=Tsallis(1.5)).sin().sum()

    leaf = tensors["query"].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(tensors["query"]), expected)
