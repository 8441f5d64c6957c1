"""What a layer keeps of its last call: there or not there, with gradient or without."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.errors import NotKeptError, ProblemError
from fenchel.functional import reference
from fenchel.nn import norm_penalty
from fenchel.nn.templates import template_spread
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

KEPT = {"certificate": "last_certificate", "gap": "last_gap", "norm penalty": "last_norm_penalty"}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("what", KEPT)
def test_what_was_not_kept_is_not_there(what):
    layer = build()
    assert not hasattr(layer, KEPT[what])
    assert getattr(layer, KEPT[what], "nothing") == "nothing"
    with pytest.raises(
        NotKeptError, match=f"no {what} of a last call; set keep_{what.replace(' ', '_')} = True"
    ):
        getattr(layer, KEPT[what])
    with pytest.raises(ProblemError, match=what):
        getattr(layer, KEPT[what])
    with pytest.raises(AttributeError, match="has no attribute 'last_word'"):
        _ = layer.last_word


@pytest.mark.parametrize("what", KEPT)
def test_what_was_kept_is_there_until_a_call_that_does_not_keep_it(what):
    layer, x = build(), tokens()
    switch = f"keep_{what.replace(' ', '_')}"
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
    assert layer.last_gap.shape == (BATCH, HEADS, KEYS)
    torch.testing.assert_close(layer.last_gap.detach(), layer.last_certificate.gap)
    assert not any(part.requires_grad for part in layer.last_certificate)
    layer.last_gap.mean().backward()
    query, key, _ = heads(layer, x)
    assert isinstance(layer.preference, Importance)
    prior, alpha = layer.preference.score(x).mT[:, None], layer.log_alpha.detach().exp().requires_grad_()  # pyright: ignore[reportOptionalMemberAccess]
    slow = reference.gap(query, key, log_preference=prior, alpha=alpha[:, None], estimator=estimator)
    parts = (layer.in_proj_weight, layer.preference.score.weight, alpha)
    to_weight, to_score, to_alpha = torch.autograd.grad(slow.mean(), parts)
    torch.testing.assert_close(gradient(layer.in_proj_weight), to_weight)
    torch.testing.assert_close(gradient(layer.preference.score.weight), to_score)
    torch.testing.assert_close(gradient(layer.log_alpha), to_alpha * alpha)


def test_exact_attention_has_no_gap_to_train():
    layer, x = build(keep_gap=True, estimator="exact"), tokens()
    with pytest.raises(ProblemError, match="estimator is 'exact', whose gap is 0"):
        layer(x, x, x)


def spread_by_definition(templates: Tensor, u: Tensor) -> Tensor:
    mean = u @ templates
    return (u * (templates.unsqueeze(-3) - mean.unsqueeze(-2)).square().sum(-1)).sum(-1)


@pytest.mark.parametrize("kind", ["none", "shared", "bool", "rows"])
def test_spread_is_the_trace_of_the_covariance(kind):
    templates = torch.randn(BATCH, HEADS, KEYS, 4, dtype=torch.float64) + 100
    log_u = torch.randn(BATCH, 1, QUERIES, KEYS, dtype=torch.float64)
    if kind == "none":
        given, log_u = None, torch.zeros(1, 1, 1, KEYS, dtype=torch.float64)
    elif kind == "shared":
        given = log_u = log_u[0, 0, 0]
    elif kind == "bool":
        given = log_u > 0
        given[..., 0] = True
        log_u = torch.zeros_like(log_u).masked_fill(~given, -torch.inf)
    else:
        given = log_u
    u = log_u.softmax(-1).expand(BATCH, HEADS, QUERIES if kind in ("bool", "rows") else 1, KEYS)
    torch.testing.assert_close(template_spread(templates, given), spread_by_definition(templates, u))


def test_spread_of_nothing_is_zero():
    templates = torch.randn(1, 1, KEYS, 4, dtype=torch.float64, requires_grad=True)
    log_u = torch.zeros(2, KEYS, dtype=torch.float64)
    log_u[0] = -torch.inf
    for given in (log_u, log_u == 0):
        spread = template_spread(templates, given)
        assert spread[0, 0, 0] == 0
        assert spread[0, 0, 1] > 0
        (gradient,) = torch.autograd.grad(spread.sum(), templates)
        assert gradient.isfinite().all()


def test_penalty_is_half_alpha_times_the_spread_and_bounds_the_gap():
    preference, x = Importance(), tokens()
    layer = build(alpha=1.4, keep_norm_penalty=True, keep_certificate=True, preference=preference)
    layer(x, x, x)
    q, k, _ = heads(layer, x)
    log_u = preference(preference.seen)
    spread = template_spread(k * (WIDTH // HEADS) ** -0.5, log_u)
    torch.testing.assert_close(norm_penalty(layer), (0.7 * spread).mean())
    weights = functional.attention_weights(q, k, log_preference=log_u, alpha=1.4)
    u = log_u.softmax(-1)
    chi_squared = ((weights - u).square() / u).sum(-1)
    gap = layer.last_certificate.gap
    assert (gap <= chi_squared * 0.7 * spread * (1 + 1e-9)).all()
    assert (gap > 0.01 * chi_squared * 0.7 * spread).any()


def test_penalty_reaches_keys_alpha_and_preference():
    preference, x = Importance(), tokens()
    layer = build(learn_alpha=True, keep_norm_penalty=True, preference=preference)
    layer(x, x, x, need_weights=False)
    norm_penalty(layer).backward()
    query, key, value = gradient(layer.in_proj_weight).chunk(3)
    assert key.abs().max() > 0
    assert query.abs().max() == value.abs().max() == 0
    assert (gradient(layer.log_alpha) != 0).all()
    assert gradient(preference.score.weight).abs().max() > 0


def test_penalty_of_a_model_is_the_mean_of_its_layers():
    model, x = (
        nn.ModuleList([build(keep_norm_penalty=True), build(keep_norm_penalty=True), build()]),
        tokens(),
    )
    for layer in model:
        layer(x, x, x)
    expected = (norm_penalty(model[0]) + norm_penalty(model[1])) / 2
    torch.testing.assert_close(norm_penalty(model), expected)
