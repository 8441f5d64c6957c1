"""What the layer does that torch's does not: preferences, estimators, reliability, what it keeps of its last call."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fenchel import Tsallis, functional
from fenchel import functional as F
from fenchel.errors import NotKeptError, ProblemError
from fenchel.functional import flex, reference
from fenchel.nn import MultiheadAttention, norm_penalty
from fenchel.nn.calls import TorchMasks
from fenchel.nn.inference import Problem, infer_fused
from fenchel.nn.preference import AttentionInputs, Causal, KeyPadding, LearnedBias
from tests.nn.preferences import as_log_weights, perturbed
from tests.nn.small_layers import (
    BATCH,
    HEADS,
    KEYS,
    QUERIES,
    WIDTH,
    Importance,
    build,
    gradient,
    heads,
    tokens,
)

ESTIMATORS = ("first_order", "second_order", "exact")


@pytest.mark.parametrize("batch_first", [True, False])
def test_preference_sees_the_layers_inputs(batch_first):
    preference, seen = Causal(), []
    layer = MultiheadAttention(WIDTH, HEADS, kdim=5, batch_first=batch_first, preference=preference)
    preference.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    query, key, value = (
        torch.randn(BATCH, QUERIES, WIDTH),
        torch.randn(BATCH, KEYS, 5),
        torch.randn(BATCH, KEYS, WIDTH),
    )
    padding = torch.tensor([[False] * KEYS, [False] * (KEYS - 1) + [True]])
    given = (query, key, value) if batch_first else [s.transpose(0, 1) for s in (query, key, value)]
    layer(*given, key_padding_mask=padding, query_offset=2)
    layer(*given, key_padding_mask=torch.zeros(BATCH, KEYS).masked_fill(padding, -torch.inf), query_offset=0)
    first, second = seen
    assert (first.batch, first.heads, first.queries, first.keys) == (BATCH, HEADS, QUERIES, KEYS)
    assert (first.dtype, first.query_offset, second.query_offset) == (torch.float32, 2, 0)
    parts = (first.query_inputs, first.key_inputs, first.key_padding, second.key_padding)
    torch.testing.assert_close(parts, (query, key, padding, padding), rtol=0, atol=0)


@pytest.mark.parametrize("learn_radius", [True, False])
def test_normalised_templates(learn_radius):
    layer = build(
        normalize_templates=True, radius=1.5, learn_radius=learn_radius, alpha=0.5, estimator="exact"
    )
    x = tokens()
    q, k, v = heads(layer, x)
    unit = k / k.norm(dim=-1, keepdim=True)
    expected = functional.reference.attention(q, 1.5 * unit, v, scale=1.0, alpha=0.5, estimator="exact")
    output, _ = layer(x, x, x)
    torch.testing.assert_close(output, layer.out_proj(expected.transpose(1, 2).flatten(2)), atol=1e-9, rtol=0)
    layer.in_proj_weight.data[WIDTH : 2 * WIDTH] *= 7.0  # the norm of keys does not matter
    torch.testing.assert_close(layer(x, x, x)[0], output, atol=1e-9, rtol=0)
    if learn_radius:
        output.square().sum().backward()
        assert (gradient(layer.log_radius) != 0).all()


def test_fused_form_is_the_dense_one(monkeypatch):
    """On a GPU the layer takes it; on the CPU it runs if asked for by name, which is enough to compare."""
    monkeypatch.setattr(flex, "flex_attention", partial(flex.flex_attention, eager=True))
    x = torch.randn(BATCH, KEYS, 48)
    padding = torch.tensor([[False] * KEYS, [False] * (KEYS - 1) + [True]])
    inputs = AttentionInputs(
        BATCH, HEADS, KEYS, KEYS, x.device, x.dtype, query_inputs=x, key_inputs=x, key_padding=padding
    )
    q, k, v = (x.view(BATCH, KEYS, HEADS, 16).transpose(1, 2) for x in torch.randn(3, BATCH, KEYS, 48))
    alpha = torch.tensor([[0.5], [1.0], [2.0]])
    with torch.no_grad():
        fused = infer_fused(Problem(q, k, v, alpha, 0.3), Causal(), inputs).output
    log_u = (Causal() * KeyPadding())(inputs)
    torch.testing.assert_close(
        fused, F.attention(q, k, v, log_preference=log_u, alpha=alpha, scale=0.3), atol=1e-5, rtol=0
    )


FUSED: list[tuple[bool, dict[str, Any]]] = [
    *((True, options) for options in ({}, {"dropout": 0.1, "training": False}, {"dtype": torch.bfloat16})),
    *((False, {name: True}) for name in ("keep_certificate", "keep_norm_penalty", "add_zero_attn", "add_bias_kv")),
    *((False, {"preference": preference}) for preference in (None, Importance())),
    *((False, options) for options in ({"estimator": "exact"}, {"dropout": 0.1}, {"num_heads": 6})),
    (False, {"attn_mask": torch.zeros(4, 4, dtype=torch.bool)}),
    *((False, options) for options in ({"device": "cpu"}, {"dtype": torch.float64})),
]  # fmt: skip


@pytest.mark.parametrize(("taken", "options"), FUSED)
def test_fused_form_is_taken_only_where_it_computes_what_was_asked(taken, options):
    given = {"device": "cuda", "dtype": torch.float32, "attn_mask": None, "training": True, **options}
    device, dtype, mask, training = (given.pop(name) for name in ("device", "dtype", "attn_mask", "training"))
    layer = MultiheadAttention(48, **{"num_heads": HEADS, "preference": Causal(), **given}).train(training)
    inputs = AttentionInputs(1, HEADS, 4, 4, torch.device(device), dtype)
    part = torch.empty(1, HEADS, 4, layer.head_dim)
    assert layer._can_fuse(Problem(part, part, part, 1.0, 1.0), inputs, TorchMasks(mask, None)) is taken


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("closeness", [None, Tsallis(2), Tsallis(1.3, relative="csiszar", temperature=0.5)])
def test_it_is_attention_under_that_closeness(closeness: Tsallis | None, estimator: str) -> None:
    layer = build(closeness=closeness, estimator=estimator, preference=Causal(), learn_alpha=True, alpha=1.7)
    x = tokens()
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[1, 4:] = True
    output, weights = layer(x, x, x, padding, average_attn_weights=False)
    q, k, v = heads(layer, x)
    allowed = torch.ones(KEYS, KEYS, dtype=torch.bool).tril() & ~padding[:, None, None]
    options: dict[str, Any] = {
        "log_preference": allowed,
        "closeness": closeness,
        "estimator": estimator,
        "alpha": 1.7,
    }
    torch.testing.assert_close(weights, F.attention_weights(q, k, **options))
    expected = layer.out_proj(F.attention(q, k, v, **options).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(layer(x, x, x, padding, need_weights=False)[0], expected)
    assert bool((weights[1, :, :, 4:] == 0).all() & (weights.triu(1) == 0).all())


def test_every_head_learns_its_order() -> None:
    layer = build(closeness=Tsallis(1.25, temperature=0.3), learn_order=True)
    assert layer.raw_order is not None
    near = layer.effective_closeness
    assert isinstance(near, Tsallis)
    torch.testing.assert_close(near.order, torch.full((HEADS, 1), 1.25).double())
    x = tokens()
    layer(x, x, x)[0].sin().sum().backward()
    assert bool((gradient(layer.raw_order).abs() > 1e-9).all())
    nn.init.normal_(layer.raw_order)
    fixed = build(closeness=Tsallis((1 + layer.raw_order.detach().sigmoid())[:, None], temperature=0.3))
    state = {name: tensor for name, tensor in layer.state_dict().items() if name != "raw_order"}
    fixed.load_state_dict(state)
    torch.testing.assert_close(fixed(x, x, x)[0], layer(x, x, x)[0])
    layer.estimator = fixed.estimator = "exact"
    torch.testing.assert_close(fixed(x, x, x)[0], layer(x, x, x)[0])
    layer.reset_parameters()
    torch.testing.assert_close(layer.raw_order.sigmoid(), torch.full((HEADS,), 0.25).double())
    numbers: Any = fixed.to("meta").effective_closeness
    assert numbers.order.is_meta


KEPT = {"certificate": "last_certificate", "gap": "last_gap", "norm penalty": "last_norm_penalty"}


@pytest.mark.parametrize("what", KEPT)
def test_what_is_kept_is_there_from_a_call_that_keeps_it_to_one_that_does_not(what):
    layer, x = build(), tokens()
    switch = f"keep_{what.replace(' ', '_')}"
    assert not hasattr(layer, KEPT[what])
    with pytest.raises(NotKeptError, match=f"no {what} of a last call; set {switch} = True"):
        getattr(layer, KEPT[what])
    with pytest.raises(AttributeError, match="has no attribute 'last_word'"):
        _ = layer.last_word
    setattr(layer, switch, True)
    layer(x, x, x)
    assert hasattr(layer, KEPT[what])
    assert not any(hasattr(layer, other) for name, other in KEPT.items() if name != what)
    assert not hasattr(copy.deepcopy(layer), KEPT[what])
    assert not hasattr(pickle.loads(pickle.dumps(layer)), KEPT[what])  # noqa: S301 -- our own
    setattr(layer, switch, False)
    layer(x, x, x)
    assert not hasattr(layer, KEPT[what])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("estimator", ["first_order", "second_order"])
def test_the_gap_is_the_certificates_with_gradient(estimator, need_weights):
    layer = build(
        estimator=estimator, preference=Importance(), keep_gap=True, keep_certificate=True, learn_alpha=True
    )
    x = tokens()
    layer(x, x, x, need_weights=need_weights)
    torch.testing.assert_close(layer.last_gap.detach(), layer.last_certificate.gap)
    layer.last_gap.mean().backward()
    query, key, _ = heads(layer, x)
    assert isinstance(layer.preference, Importance)
    prior, alpha = layer.preference.score(x).mT[:, None], layer.log_alpha.detach().exp().requires_grad_()  # pyright: ignore[reportOptionalMemberAccess]
    slow = reference.gap(query, key, log_preference=prior, alpha=alpha[:, None], estimator=estimator)
    torch.testing.assert_close(layer.last_gap, slow)
    parts = (layer.in_proj_weight, layer.preference.score.weight, alpha)
    to_weight, to_score, to_alpha = torch.autograd.grad(slow.mean(), parts)
    torch.testing.assert_close(gradient(layer.in_proj_weight), to_weight)
    torch.testing.assert_close(gradient(layer.preference.score.weight), to_score)
    torch.testing.assert_close(gradient(layer.log_alpha), to_alpha * alpha)
    layer.estimator = "exact"
    with pytest.raises(ProblemError, match="estimator is 'exact', whose gap is 0"):
        layer(x, x, x)


def test_queries_without_anything_to_attend_to_have_no_penalty_and_that_of_a_model_is_the_mean():
    layer, x = build(keep_norm_penalty=True, preference=Importance()), tokens()
    layer(x, x, x, torch.tensor([[False] * KEYS, [True] * KEYS]))
    penalty = norm_penalty(layer)
    layer(x[:1], x[:1], x[:1])
    torch.testing.assert_close(penalty, norm_penalty(layer) / 2)
    slopes = torch.autograd.grad(penalty, list(layer.parameters()), materialize_grads=True, allow_unused=True)
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    other = build(keep_norm_penalty=True)
    other(x, x, x)
    expected = (norm_penalty(layer) + norm_penalty(other)) / 2
    torch.testing.assert_close(norm_penalty(nn.ModuleList([layer, other, build()])), expected)


@pytest.mark.parametrize(
    "preference", [None, Causal(), perturbed(LearnedBias(HEADS, KEYS, KEYS)), Importance()]
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_penalty_is_half_alpha_times_the_trace_of_the_covariance_and_bounds_the_gap(preference, need_weights):
    options: dict[str, Any] = {"keep_norm_penalty": True, "keep_certificate": True}
    layer = build(alpha=1.4, learn_alpha=True, preference=preference, **options)
    layer.in_proj_bias.data[WIDTH : 2 * WIDTH] += 100
    x = tokens()
    layer(x, x, x, need_weights=need_weights)
    inputs = AttentionInputs(BATCH, HEADS, KEYS, KEYS, x.device, x.dtype, key_inputs=x)
    log_u = as_log_weights(preference and preference(inputs), inputs)
    q, k, _ = heads(layer, x)
    u, templates = log_u.softmax(-1), (k * (WIDTH // HEADS) ** -0.5).unsqueeze(2)
    spread = (u * (templates - (u.unsqueeze(-2) @ templates)).square().sum(-1)).sum(-1)
    assert layer.log_alpha is not None
    expected = (layer.log_alpha.exp() / 2 * spread.mean((0, 2))).mean()
    torch.testing.assert_close(norm_penalty(layer), expected)
    slopes = [
        torch.autograd.grad(penalty, list(layer.parameters()), materialize_grads=True, allow_unused=True)
        for penalty in (norm_penalty(layer), expected)
    ]
    torch.testing.assert_close(*slopes)
    weights = functional.attention_weights(q, k, log_preference=log_u, alpha=1.4)
    chi_squared = ((weights - u).square() / u).nansum(-1)
    gap = layer.last_certificate.gap
    assert (gap <= chi_squared * 0.7 * spread * (1 + 1e-9) + 1e-12).all()
    assert (gap > 0.01 * chi_squared * 0.7 * spread).any()
