"""Decoding with a cache gives what one call with the whole sequence gives."""

from __future__ import annotations

import pytest
import torch

from fenchel.errors import ProblemError
from fenchel.nn import KeyValueCache, MixtureAttention, MultiheadAttention, evidence
from fenchel.nn.preference import ALiBi, Causal, Context, KeyPadding, LearnedBias, RelativePosition, Window
from tests.nn import preferences

LENGTH, WIDTH, HEADS = 7, preferences.WIDTH, preferences.HEADS
DIM = WIDTH // HEADS
# What reads how many keys there are, or their mean, sees those so far while decoding and later ones in a whole call.
READS_ALL_KEYS = {
    "context",
    "gaussian, both",
    "gaussian, location",
    "proportional",
    "proportional, shared",
    "three, learned",
}


def layer_with(preference, **options) -> MultiheadAttention:
    layer = (
        MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=preference, **options).double().eval()
    )
    return layer.requires_grad_(False)


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(2, length, WIDTH, dtype=torch.float64)


def decoded(layer, x, cache, sizes, padding=None, **options):
    """Outputs and the last weights of calls with parts of a sequence."""
    outputs, weights, end = [], x, 0
    for part in x.split(sizes, 1):
        end += part.shape[1]
        held = min(end, cache.length + part.shape[1])
        masks = {} if padding is None else {"key_padding_mask": padding[:, end - held : end]}
        output, weights = layer(part, part, part, cache=cache, **masks, **options)
        outputs.append(output)
    return torch.cat(outputs, 1), weights


@pytest.mark.parametrize("name", preferences.EVERY)
def test_every_preference(name):
    layer = layer_with(Causal() * preferences.perturbed(preferences.EVERY[name]()))
    x, padding = tokens(), torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[1, 2] = True
    whole, weights = layer(x, x, x, padding)
    so_far = [layer(x[:, :n], x[:, :n], x[:, :n], padding[:, :n])[0][:, -1:] for n in range(1, LENGTH + 1)]
    for expected, sizes in ((torch.cat(so_far, 1), [1] * LENGTH), (whole, [3, 1, 2, 1])):
        if expected is whole and name in READS_ALL_KEYS:
            continue
        cache = KeyValueCache()
        steps, last = decoded(layer, x, cache, sizes, padding)
        torch.testing.assert_close(steps, expected, atol=1e-9, rtol=0)
        torch.testing.assert_close(last, weights[:, -last.shape[1] :], atol=1e-9, rtol=0)
        assert (cache.length, cache.seen, cache.dropped) == (LENGTH, LENGTH, 0)


@pytest.mark.parametrize("estimator", ["second_order", "exact"])
@pytest.mark.parametrize(
    "kind",
    [
        evidence.ScaledDot,
        lambda: evidence.Rotary(DIM),
        lambda: evidence.RelativeKeys(HEADS, DIM, 2),
        lambda: evidence.TransformerXL(HEADS, DIM, 8),
    ],
)
def test_every_kind_of_evidence_and_estimator(estimator, kind):
    options = {"estimator": estimator, "evidence": kind(), "alpha": 0.7, "keep_certificate": True}
    layer, x = layer_with(Causal() * ALiBi(HEADS), **options), tokens()
    whole, _ = layer(x, x, x, need_weights=False)
    gap = layer.last_certificate.gap
    steps, _ = decoded(layer, x, KeyValueCache(), 1, need_weights=False)
    torch.testing.assert_close(steps, whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(layer.last_certificate.gap, gap[..., -1:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("closeness", [None, "entmax15"])
@pytest.mark.parametrize("kind", [evidence.ScaledDot, lambda: evidence.Rotary(DIM)])
@pytest.mark.parametrize(
    "also",
    [
        lambda: ALiBi(HEADS),
        lambda: RelativePosition(HEADS, 6, 9),
        lambda: LearnedBias(HEADS, 20, 20),
        KeyPadding,
    ],
)
def test_a_window_holds_the_newest_keys(also, kind, closeness):
    sees = Causal() * Window(4, 0) * preferences.perturbed(also())
    layer, x = layer_with(sees, evidence=kind(), closeness=closeness), tokens(9)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 5] = True
    whole, _ = layer(x, x, x, padding)
    cache = KeyValueCache(window=4)
    steps, weights = decoded(layer, x, cache, [2, 1, 1, 3, 1, 1], padding)
    torch.testing.assert_close(steps, whole, atol=1e-9, rtol=0)
    assert weights.shape == (2, 1, 5)
    assert (cache.length, cache.seen, cache.dropped, cache.key_inputs) == (4, 9, 5, None)


def test_beams_are_reordered():
    layer, x = (
        layer_with(Causal() * preferences.perturbed(Context(HEADS, WIDTH)), estimator="exact"),
        tokens(4),
    )
    cache, more = KeyValueCache(), torch.randn(3, 1, WIDTH, dtype=torch.float64)
    decoded(layer, x, cache, 2)
    beams = torch.tensor([1, 1, 0])
    cache.reorder(beams)
    output, _ = layer(more, more, more, cache=cache)
    sequence = torch.cat((x[beams], more), 1)
    torch.testing.assert_close(output, layer(sequence, sequence, sequence)[0][:, -1:], atol=1e-6, rtol=0)
    cache.clear()
    assert (cache.length, cache.seen) == (0, 0)


@pytest.mark.parametrize("estimator", ["first_order", "exact"])
def test_memories_that_are_distributions(estimator):
    layer = MixtureAttention(
        WIDTH, HEADS, batch_first=True, preference=Causal(), estimator=estimator
    ).double()
    x = tokens()
    steps, _ = decoded(layer, x, KeyValueCache(), [3, 1, 1, 2])
    torch.testing.assert_close(steps, layer(x, x, x)[0], atol=1e-6, rtol=0)
    with pytest.raises(ProblemError, match="window=4"):
        layer(x, x, x, cache=KeyValueCache(4))


@pytest.mark.parametrize(
    "options", [{"estimator": "exact", "tol": 1e-10}, {"add_bias_kv": True, "add_zero_attn": True}]
)
def test_gradients_pass_through_a_cache_whatever_the_layout(options):
    layer, x = layer_with(Causal(), **options), tokens(4).requires_grad_()
    whole = layer(x, x, x)[0]
    steps, _ = decoded(layer, x, KeyValueCache(), 2)
    torch.testing.assert_close(steps, whole, atol=1e-6, rtol=0)
    found, expected = (torch.autograd.grad(output.square().sum(), x)[0] for output in (steps, whole))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    layer.batch_first = False
    for given, output in ((x.transpose(0, 1), whole.transpose(0, 1)), (x[0], whole[0])):
        cache = KeyValueCache()
        found = torch.cat([layer(part, part, part, cache=cache)[0] for part in given.split(2)])
        torch.testing.assert_close(found, output, atol=1e-6, rtol=0)


def test_a_failed_call_leaves_the_cache_as_it_was():
    layer, x, cache = layer_with(Causal() * LearnedBias(HEADS, 3, 3)), tokens(4), KeyValueCache()
    decoded(layer, x[:, :3], cache, 1)
    kept = cache.keys
    with pytest.raises(ProblemError, match="LearnedBias"):
        layer(x[:, 3:], x[:, 3:], x[:, 3:], cache=cache)
    assert cache.keys is kept
    assert cache.seen == 3
