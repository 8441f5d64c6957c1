"""The norm penalty: what it is, what it bounds, what it reaches."""

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.errors import ProblemError
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


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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
    with pytest.raises(ProblemError, match="no layer of this Linear keeps its norm penalty"):
        norm_penalty(nn.Linear(2, 2))
    with pytest.raises(ProblemError, match=r"no norm penalty of a last call"):
        norm_penalty(build(keep_norm_penalty=True))
