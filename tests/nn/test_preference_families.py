"""Each family against its formula, and against the implementation that people know."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional as F
from fenchel.nn import MultiheadAttention
from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    ALiBi,
    AttentionInputs,
    Context,
    ContextNetwork,
    GaussianWindow,
    KeyPadding,
    LearnedBias,
    QuadraticGridPosition,
    QuadraticPosition,
    RelativePosition,
    Window,
)
from fenchel.nn.preference.positions import alibi_slopes, relative_position_bucket
from tests.nn.preferences import HEADS, LOWERED, WIDTH, as_log_weights, attention_inputs, by_index, perturbed
from tests.normal import drawn
from tests.side_effects import default_dtype


def distances(inputs: AttentionInputs) -> Tensor:
    """Key position minus query position, (m, n)."""
    return (inputs.key_positions - inputs.query_positions[:, None]).double()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 20), (8, 7), (64, 1000), (4, 3)])
def test_buckets_are_those_of_transformers(buckets, max_distance, bidirectional):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-3000, 3001)
    theirs = t5.T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    ours = relative_position_bucket(distance, buckets, max_distance, bidirectional)
    assert torch.equal(ours, theirs)
    # The table by which a module looks them up ends at max_distance.
    preference = RelativePosition(2, buckets, max_distance, bidirectional)
    limited = distance.clamp(-max_distance, max_distance) + max_distance
    assert torch.equal(preference.bucket_of_distance[limited], theirs)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_pretrained_bias_is_taken_over(is_decoder):
    transformers = pytest.importorskip("transformers")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = transformers.T5Config(
        d_model=16, d_kv=4, num_heads=4, is_decoder=is_decoder, relative_attention_max_distance=20
    )
    attention = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    nn.init.normal_(attention.relative_attention_bias.weight)
    weight = attention.relative_attention_bias.weight
    expected = attention.compute_bias(30, 40, past_seen_tokens=5)
    inputs = AttentionInputs(2, 4, 30, 40, weight.device, weight.dtype, query_offset=5)
    taken = RelativePosition.from_t5(weight, max_distance=20, bidirectional=not is_decoder)
    loaded = RelativePosition(4, max_distance=20, bidirectional=not is_decoder)
    loaded.load_state_dict({k: v for k, v in attention.state_dict().items() if k.startswith("relative")})
    for preference in (taken, loaded):
        assert torch.equal(preference(inputs), expected)
    assert taken.relative_attention_bias.weight is not weight
    taken(inputs).sum().backward()
    assert taken.relative_attention_bias.weight.grad is not None


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 20])
def test_slopes_are_those_of_the_paper(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), theirs)


def per_head(number: Tensor) -> Tensor:
    return number[:, None, None]


def bell(p: Any, apart: Tensor) -> Tensor:
    return -((apart - per_head(p.shift)) ** 2) / (2 * per_head(p.log_width.exp()) ** 2)


def around_predicted(p: Any, inputs: Any) -> Tensor:
    """A share of the way from the first key to the last, which in the second example are padded."""
    first, last = torch.tensor([[[0.0]], [[1.0]]]), torch.tensor([[[6.0]], [[5.0]]])
    place = first + (last - first) * torch.sigmoid(p.location(inputs.query_inputs))
    width = torch.exp(p.log_width + p.width_change(inputs.query_inputs))
    apart = inputs.key_positions - place.transpose(1, 2)[..., None]
    return -(apart**2) / (2 * width.transpose(1, 2)[..., None] ** 2)


FORMULAS: dict[str, tuple[AbstractPreference, Callable[[Any, Any], Tensor]]] = {
    "alibi": (ALiBi(HEADS), lambda p, x: -per_head(alibi_slopes(HEADS)) * distances(x).abs()),
    "alibi, one way": (ALiBi(HEADS, symmetric=False), lambda p, x: per_head(alibi_slopes(HEADS)) * distances(x)),
    "alibi, learned": (ALiBi(HEADS, learned=True), lambda p, x: -per_head(p.log_slopes.exp()) * distances(x).abs()),
    "quadratic": (
        QuadraticPosition(HEADS, width=2.0),
        lambda p, x: -per_head(p.curvature) * distances(x) ** 2 - per_head(p.drift) * distances(x),
    ),
    "gaussian": (GaussianWindow(HEADS, width=2.0), lambda p, x: bell(p, distances(x))),
    "gaussian, of another sequence": (
        GaussianWindow(HEADS, width=2.0, pace=1.5),
        lambda p, x: bell(p, x.key_positions - 1.5 * x.query_positions[:, None]),
    ),
    "gaussian, around a predicted place": (
        GaussianWindow(HEADS, 2.0, predict_location=True, predict_width=True, query_dim=WIDTH), around_predicted
    ),
    "padding": (KeyPadding(), lambda p, x: ~x.key_padding[:, None, None]),
    "window": (Window(2, 1), lambda p, x: (distances(x) >= -2) & (distances(x) <= 1)),
    "dilated": (Window(4, 4, dilation=2), lambda p, x: (distances(x).abs() <= 4) & (distances(x) % 2 == 0)),
    "learned bias": (LearnedBias(HEADS, 9, 9), lambda p, x: p.bias[:, x.query_positions, : x.keys]),
}  # fmt: skip


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("name", FORMULAS)
def test_log_weights_are_those_of_the_formula(name, offset):
    preference, formula = FORMULAS[name]
    preference, inputs = perturbed(copy.deepcopy(preference)), attention_inputs(offset=offset)
    found, expected = (
        as_log_weights(log_u, inputs) for log_u in (preference(inputs), formula(preference, inputs))
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, check_dtype=False)


BY_POSITION = ("alibi", "quadratic", "gaussian", "proportional", "relative position", "tempered")


@pytest.mark.parametrize("name", [name for name in LOWERED if name.startswith(BY_POSITION)])
def test_positions_are_not_rounded_to_torchs_default_dtype(name):
    preference, inputs = perturbed(LOWERED[name]()), attention_inputs(300, 310)
    expected = preference(inputs)
    with default_dtype(torch.bfloat16):
        torch.testing.assert_close(preference(inputs), expected, rtol=1e-12, atol=1e-12)


def test_without_padding_there_is_nothing_to_mask_and_places_are_predicted_among_all_keys():
    inputs = attention_inputs()
    unpadded = replace(inputs, key_padding=None)
    assert KeyPadding()(unpadded) is None
    given: Any = perturbed(copy.deepcopy(FORMULAS["gaussian, around a predicted place"][0]))
    torch.testing.assert_close(given(unpadded)[0], given(inputs)[0])
    assert not torch.allclose(given(unpadded)[1], given(inputs)[1])


def test_a_fresh_preference_has_the_width_and_the_slopes_asked_for_or_is_uniform():
    inputs = attention_inputs(dtype=torch.float32)
    predicted = GaussianWindow(1, width=3.0, predict_width=True, query_dim=WIDTH)
    for given in (QuadraticPosition(1, width=3.0), GaussianWindow(1, width=3.0), predicted):
        torch.testing.assert_close(
            as_log_weights(given(inputs), inputs)[0, 0], -(distances(inputs) ** 2) / 18, check_dtype=False
        )
    learned: Any = ALiBi(HEADS, learned=True)
    torch.testing.assert_close(learned(inputs), ALiBi(HEADS)(inputs))
    with torch.no_grad():
        learned.log_slopes.sub_(50.0)
    assert (learned.slopes > 0).all()
    context: Any = Context(HEADS, WIDTH, hidden=5)
    for given in (LearnedBias(HEADS, 6, 7), context):
        assert not as_log_weights(given(inputs), inputs).any()
    context(inputs)[..., 0].sum().backward()
    assert context.network.score.weight.grad.any()


def test_context_sees_the_whole_sentence_but_no_padding():
    inputs: Any = attention_inputs()
    context: Any = perturbed(Context(HEADS, WIDTH))
    before = context(inputs)
    elsewhere = inputs.key_inputs.clone()
    elsewhere[:, 3] += 1.0
    after = context(replace(inputs, key_inputs=elsewhere))
    assert (after[..., 2] != before[..., 2]).all()  # a token that did not change itself
    padding = inputs.key_inputs.clone()
    padding[inputs.key_padding] = torch.nan
    ignored = context(replace(inputs, key_inputs=padding))
    assert torch.equal(ignored[1, ..., 1:-1], before[1, ..., 1:-1])
    all_padding = torch.ones(1, 2, dtype=torch.bool)
    assert torch.isfinite(ContextNetwork(1, WIDTH)(torch.ones(1, 2, WIDTH), all_padding)).all()


def test_a_network_of_ones_own_may_ask_for_the_padding():
    class Counting(nn.Module):
        def forward(self, tokens: Tensor, key_padding: Tensor | None = None) -> Tensor:
            assert key_padding is not None
            return (~key_padding).sum(1)[:, None, None].expand(*tokens.shape[:2], 1).to(tokens)

    log_u: Any = Context(1, network=Counting())(attention_inputs())
    assert log_u[:, 0, 0, 0].tolist() == [7, 5]


def test_additive_keeps_one_block_of_hidden_units_at_a_time_and_says_the_same():
    inputs = attention_inputs()
    preference = Additive(HEADS, WIDTH, hidden=4, block_entries=1).double()
    whole = Additive(HEADS, WIDTH, hidden=4).double()
    whole.load_state_dict(preference.state_dict())
    torch.testing.assert_close(preference(inputs), whole(inputs))
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t,
        lambda t: t,  # pyright: ignore[reportUnknownLambdaType]
    ):
        preference(inputs)
    all_units = 2 * HEADS * 5 * 7 * 4
    assert max(kept) < all_units / 4


@pytest.mark.parametrize("compiled", [lambda x: x, lambda x: torch.compile(x, backend="aot_eager")])
def test_weights_are_recomputed_for_the_gradient_of_a_preference(compiled):
    run = compiled(MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=RelativePosition(HEADS)))
    tokens, kept = torch.randn(3, 40, WIDTH, dtype=torch.float32), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        run(tokens, tokens, tokens, need_weights=False)[0].sum().backward()
    assert max(kept) < 3 * HEADS * 40 * 40


GRID = (4, 5)


def inputs_of(padding: tuple[int, int], heads: int, offset: int = 0) -> AttentionInputs:
    keys = (GRID[0] + 2 * padding[0]) * (GRID[1] + 2 * padding[1])
    queries = GRID[0] * GRID[1] - offset
    return AttentionInputs(2, heads, queries, keys, torch.device("cpu"), torch.float64, query_offset=offset)


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize(("heads", "kernel"), [(4, None), (9, None), (6, (2, 3)), (1, None)])
def test_it_is_a_paraboloid_around_a_shifted_pixel(heads, kernel, offset):
    padding = (1, 2)
    preference = perturbed(QuadraticGridPosition(GRID, heads, kernel, width=0.8, padding=padding))
    assert isinstance(preference, QuadraticGridPosition)
    inputs = inputs_of(padding, max(heads, 2), offset)
    found: Any = preference(inputs).expand(1, max(heads, 2), -1, -1)[0]
    pixels = torch.cartesian_prod(torch.arange(GRID[0]), torch.arange(GRID[1]))[offset:]
    around = torch.cartesian_prod(torch.arange(-1, GRID[0] + 1), torch.arange(-2, GRID[1] + 2))
    apart = (around - pixels.unsqueeze(1)).double()
    for h in range(heads):
        square = (apart - preference.centre[h]).square().sum(-1)
        torch.testing.assert_close(found[h], -preference.curvature[h] * square)
    torch.testing.assert_close(by_index(preference, inputs)[0], found)


@pytest.mark.parametrize(
    ("kernel", "padding"), [((3, 3), (1, 1)), ((2, 2), (0, 1)), ((1, 4), (0, 2)), ((5, 3), (2, 1))]
)
@pytest.mark.parametrize("curvature", [1.0, 2.0, 5.0, 10.0, 25.0])
def test_it_is_a_convolution_to_within_what_leaks(kernel, padding, curvature):
    """With zeros around the image, also more of them than the kernel needs."""
    (rows, columns), heads = kernel, kernel[0] * kernel[1]
    image, weight = drawn(2, 3, *GRID), drawn(4, 3, *kernel, seed=1)
    pads = (max(rows // 2, padding[0]), max(columns // 2, padding[1]))
    width = (2 * curvature) ** -0.5
    preference = QuadraticGridPosition(GRID, heads, kernel, width=width, padding=pads).double()
    padded = torch.nn.functional.pad(image, (pads[1], pads[1], pads[0], pads[0])).flatten(2).mT.unsqueeze(1)
    value = padded.expand(-1, heads, -1, -1)
    log_u = preference(inputs_of(pads, heads)).detach()
    nothing = torch.zeros(2, heads, GRID[0] * GRID[1], 3, dtype=torch.float64)
    shifted = F.attention(nothing, value, value, log_preference=log_u)
    maps = weight.flatten(2).permute(2, 0, 1)  # by head: (heads, out, in)
    found = torch.einsum("bhqi,hoi->boq", shifted, maps).unflatten(-1, GRID)
    sides = ((columns - 1) // 2, columns // 2, (rows - 1) // 2, rows // 2)  # as padding="same" has them
    expected = torch.nn.functional.conv2d(torch.nn.functional.pad(image, sides), weight)
    leakage, beyond = (
        float(preference.leakage.detach().max()),
        1 / (math.exp(curvature) - math.exp(-2 * curvature)),
    )
    assert leakage == pytest.approx(min(1, 4 * beyond * (1 + beyond)), rel=1e-5)
    farthest = torch.cdist(value[:, 0], value[:, 0]).max()
    norms = torch.linalg.matrix_norm(maps, 2).sum()
    error = (found - expected).detach().norm(dim=1).max()
    assert error <= leakage * farthest * norms * (1 + 1e-9) + 1e-12

    # The bound on the weight beside the centre holds for each pixel, and is no larger than twice what is there inside.
    beside = 1 - log_u.softmax(-1).amax(-1)
    assert float(beside.max()) <= leakage * (1 + 1e-6) + 1e-14
    if curvature >= 5 and min(kernel) > 1:
        assert leakage < 2 * float(beside.max())
