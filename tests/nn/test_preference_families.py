"""Each family against its formula, and against the implementation that people know."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional as F
from fenchel.nn.preference import (
    Additive,
    ALiBi,
    AttentionInputs,
    Causal,
    Context,
    ContextNetwork,
    GaussianWindow,
    KeyPadding,
    LearnedBias,
    Location,
    QuadraticGridPosition,
    QuadraticPosition,
    RelativePosition,
    Window,
)
from fenchel.nn.preference.positions import alibi_slopes, relative_position_bucket
from tests.nn.preferences import HEADS, WIDTH, attention_inputs, by_index, perturbed


def distances(inputs: AttentionInputs) -> Tensor:
    """Key position minus query position, (m, n)."""
    return inputs.key_positions - inputs.query_positions[:, None]


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


def test_alibi_is_linear_in_distance():
    inputs = attention_inputs(offset=2)
    slopes = alibi_slopes(HEADS).double()[:, None, None]
    distance = distances(inputs).double()
    torch.testing.assert_close(ALiBi(HEADS)(inputs)[0], -slopes * distance.abs(), rtol=0, atol=0)
    one_way = ALiBi(HEADS, symmetric=False)(inputs)
    torch.testing.assert_close(one_way[0], slopes * distance, rtol=1e-6, atol=0)
    learned = ALiBi(HEADS, learned=True)
    torch.testing.assert_close(learned(inputs), ALiBi(HEADS)(inputs))
    assert [name for name, _ in learned.named_parameters()] == ["log_slopes"]
    assert list(ALiBi(HEADS).parameters()) == []
    with torch.no_grad():
        learned.log_slopes.sub_(50.0)  # pyright: ignore[reportOptionalMemberAccess]
    assert (learned.slopes > 0).all()


def test_quadratic_position_is_a_parabola():
    preference, inputs = perturbed(QuadraticPosition(HEADS, width=2.0)), attention_inputs(offset=1)
    assert isinstance(preference, QuadraticPosition)
    back = -distances(inputs).double()
    a, b = preference.curvature[:, None, None], preference.drift[:, None, None]
    torch.testing.assert_close(preference(inputs)[0], -a * back**2 + b * back)  # pyright: ignore[reportOptionalSubscript]
    assert (a > 0).all()
    # Up to a constant a row, a Gaussian around i - b/2a.
    rows = preference(inputs)[0].log_softmax(-1)  # pyright: ignore[reportOptionalSubscript]
    gaussian = (-a * (back - b / (2 * a)) ** 2).log_softmax(-1)
    torch.testing.assert_close(rows, gaussian)


def test_width_is_what_the_quadratic_starts_with():
    narrow, wide = QuadraticPosition(1, width=1.0), QuadraticPosition(1, width=10.0)
    assert narrow.curvature.item() == pytest.approx(0.5)
    assert wide.curvature.item() == pytest.approx(0.005)


def test_gaussian_window_around_the_query():
    preference, inputs = perturbed(GaussianWindow(HEADS, width=2.0)), attention_inputs(offset=1)
    assert isinstance(preference, GaussianWindow)
    assert preference.shift is not None
    shift, width = preference.shift[:, None, None], preference.log_width.exp()[:, None, None]
    expected = -((distances(inputs) - shift) ** 2) / (2 * width**2)
    torch.testing.assert_close(preference(inputs)[0], expected)  # pyright: ignore[reportOptionalSubscript]


def test_gaussian_window_around_a_place_of_another_sequence():
    preference, inputs = GaussianWindow(HEADS, width=2.0, pace=1.5), attention_inputs(offset=1)
    aligned = 1.5 * inputs.query_positions[:, None]
    expected = -((inputs.key_positions - aligned) ** 2) / 8.0
    found = preference(inputs)
    assert found is not None
    torch.testing.assert_close(found[0], expected.expand_as(found[0]), check_dtype=False)


def test_gaussian_window_around_a_predicted_place():
    preference = GaussianWindow(HEADS, 2.0, predict_location=True, predict_width=True, query_dim=WIDTH)
    preference, inputs = perturbed(preference), attention_inputs()
    assert isinstance(preference, GaussianWindow)
    assert preference.location is not None
    assert preference.width_change is not None
    share = torch.sigmoid(preference.location(inputs.query_inputs))
    first, last = (
        torch.tensor([0.0, 1.0]),
        torch.tensor([6.0, 5.0]),
    )  # the second example is padded on both sides
    place = first[:, None, None] + (last - first)[:, None, None] * share
    width = torch.exp(preference.log_width + preference.width_change(inputs.query_inputs))
    distance = inputs.key_positions - place.transpose(1, 2)[..., None]
    expected = -(distance**2) / (2 * width.transpose(1, 2)[..., None] ** 2)
    torch.testing.assert_close(preference(inputs), expected)
    unpadded = preference(replace(inputs, key_padding=None))
    assert unpadded is not None
    torch.testing.assert_close(unpadded[0], expected[0])
    assert not torch.allclose(unpadded[1], expected[1])


def test_a_fresh_gaussian_window_has_the_width_asked_for():
    inputs = attention_inputs()
    for predict in (False, True):
        preference = GaussianWindow(
            1, width=3.0, predict_width=predict, query_dim=WIDTH if predict else None
        ).double()
        torch.testing.assert_close(preference(inputs)[0, 0], -(distances(inputs).double() ** 2) / 18.0)  # pyright: ignore[reportOptionalSubscript]


def test_masks_are_their_definitions():
    inputs = attention_inputs(offset=2)
    distance = distances(inputs)
    assert torch.equal(Causal()(inputs)[0, 0], distance <= 0)  # pyright: ignore[reportOptionalSubscript]
    assert torch.equal(KeyPadding()(inputs)[:, 0, 0], ~inputs.key_padding)  # pyright: ignore[reportOptionalSubscript, reportOptionalOperand]
    assert torch.equal(Window(2, 1)(inputs)[0, 0], (distance >= -2) & (distance <= 1))  # pyright: ignore[reportOptionalSubscript]
    assert torch.equal(Window(None, 1)(inputs)[0, 0], distance <= 1)  # pyright: ignore[reportOptionalSubscript]
    assert torch.equal(Window(0, None)(inputs)[0, 0], distance >= 0)  # pyright: ignore[reportOptionalSubscript]
    dilated = (distance.abs() <= 4) & (distance % 2 == 0)
    assert torch.equal(Window(4, 4, dilation=2)(inputs)[0, 0], dilated)  # pyright: ignore[reportOptionalSubscript]
    assert KeyPadding()(replace(inputs, key_padding=None)) is None


def test_learned_bias_starts_uniform_and_reads_its_own_place():
    inputs = attention_inputs(3, 4, offset=2)
    bias = LearnedBias(HEADS, 6, 5)
    assert not bias(inputs).any()
    with torch.no_grad():
        bias.bias.copy_(torch.arange(HEADS * 30.0).reshape(HEADS, 6, 5))
    assert torch.equal(bias(inputs)[0], bias.bias[:, 2:5, :4].double())


def test_context_sees_the_whole_sentence_but_no_padding():
    inputs = attention_inputs()
    context = perturbed(Context(HEADS, WIDTH))
    assert inputs.key_inputs is not None
    before = context(inputs)
    assert before is not None
    elsewhere = inputs.key_inputs.clone()
    elsewhere[:, 3] += 1.0
    after = context(replace(inputs, key_inputs=elsewhere))
    assert after is not None
    assert (after[..., 2] != before[..., 2]).all()  # a token that did not change itself
    padding = inputs.key_inputs.clone()
    padding[inputs.key_padding] = torch.nan
    ignored = context(replace(inputs, key_inputs=padding))
    assert ignored is not None
    assert torch.equal(ignored[1, ..., 1:-1], before[1, ..., 1:-1])
    nothing_real = torch.ones(1, 2, WIDTH)
    all_padding = torch.ones(1, 2, dtype=torch.bool)
    assert torch.isfinite(ContextNetwork(1, WIDTH)(nothing_real, all_padding)).all()


def test_a_fresh_context_is_uniform_and_can_learn():
    inputs = attention_inputs(dtype=torch.float32)
    context = Context(HEADS, WIDTH)
    log_u = context(inputs)
    assert log_u is not None
    assert not log_u.any()
    log_u[..., 0].sum().backward()
    assert isinstance(context.network, ContextNetwork)
    assert context.network.score.weight.grad is not None
    assert context.network.score.weight.grad.any()


def test_a_network_of_ones_own_may_ask_for_the_padding():
    class Counting(nn.Module):
        def forward(self, tokens: Tensor, key_padding: Tensor | None = None) -> Tensor:
            assert key_padding is not None
            return (~key_padding).sum(1)[:, None, None].expand(*tokens.shape[:2], 1).to(tokens)

    log_u = Context(1, network=Counting())(attention_inputs())
    assert log_u is not None
    assert log_u[:, 0, 0, 0].tolist() == [7, 5]


def test_hidden_is_the_width_in_between():
    network = Context(HEADS, WIDTH, hidden=5).network
    assert isinstance(network, ContextNetwork)
    assert network.own.out_features == 5


@pytest.mark.parametrize("block_entries", [1, 2**22])
def test_additive_is_bahdanaus_score(block_entries):
    preference = perturbed(Additive(HEADS, WIDTH, WIDTH, hidden=4, block_entries=block_entries))
    assert isinstance(preference, Additive)
    inputs = attention_inputs()
    assert inputs.query_inputs is not None
    assert inputs.key_inputs is not None
    log_u = preference(inputs)
    for b, h, i, j in [(0, 0, 0, 0), (1, 2, 4, 6), (0, 1, 3, 2)]:
        rows = slice(4 * h, 4 * h + 4)
        w, c = preference.of_query.weight[rows], preference.of_query.bias[rows]
        hidden = w @ inputs.query_inputs[b, i] + preference.of_key.weight[rows] @ inputs.key_inputs[b, j] + c
        torch.testing.assert_close(log_u[b, h, i, j], preference.score[h] @ hidden.tanh())
    whole = Additive(HEADS, WIDTH, hidden=4).double()
    whole.load_state_dict(preference.state_dict())
    gradients = [
        torch.autograd.grad(u(inputs).square().sum(), list(u.parameters())) for u in (preference, whole)
    ]
    for blocked, at_once in zip(*gradients, strict=True):
        torch.testing.assert_close(blocked, at_once)


def test_additive_keeps_one_block_of_hidden_units_at_a_time():
    inputs = attention_inputs()
    preference = Additive(HEADS, WIDTH, hidden=4, block_entries=1).double()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t,
        lambda t: t,  # pyright: ignore[reportUnknownLambdaType]
    ):
        preference(inputs)
    all_units = 2 * HEADS * 5 * 7 * 4
    assert max(kept) < all_units / 4


def test_location_is_linear_in_the_query():
    preference, inputs = perturbed(Location(HEADS, WIDTH, 9)), attention_inputs()
    assert isinstance(preference, Location)
    expected = torch.einsum("hnw,bmw->bhmn", preference.weight[:, :7], inputs.query_inputs)
    torch.testing.assert_close(preference(inputs), expected)


GRID = (4, 5)


def inputs_of(
    grid: tuple[int, int], padding: tuple[int, int], heads: int, offset: int = 0
) -> AttentionInputs:
    keys = (grid[0] + 2 * padding[0]) * (grid[1] + 2 * padding[1])
    queries = grid[0] * grid[1] - offset
    return AttentionInputs(2, heads, queries, keys, torch.device("cpu"), torch.float64, query_offset=offset)


def log_weights(preference: QuadraticGridPosition, inputs: AttentionInputs) -> Tensor:
    found = preference(inputs)
    assert found is not None
    return found


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize(("heads", "kernel"), [(4, None), (9, None), (6, (2, 3)), (1, None)])
def test_it_is_a_paraboloid_around_a_shifted_pixel(heads, kernel, offset):
    padding = (1, 2)
    preference = perturbed(QuadraticGridPosition(GRID, heads, kernel, width=0.8, padding=padding))
    assert isinstance(preference, QuadraticGridPosition)
    inputs = inputs_of(GRID, padding, max(heads, 2), offset)
    found = log_weights(preference, inputs).expand(1, max(heads, 2), -1, -1)[0]
    pixels = list(itertools.product(range(GRID[0]), range(GRID[1])))[offset:]
    around = list(itertools.product(range(-1, GRID[0] + 1), range(-2, GRID[1] + 2)))
    for h in range(heads):
        a, centre = preference.curvature[h], preference.centre[h].tolist()
        square = [
            [(y[0] - x[0] - centre[0]) ** 2 + (y[1] - x[1] - centre[1]) ** 2 for y in around] for x in pixels
        ]
        torch.testing.assert_close(found[h], -a * torch.tensor(square, dtype=torch.float64))
    torch.testing.assert_close(by_index(preference, inputs)[0], found)


@pytest.mark.parametrize(
    ("kernel", "padding"), [((3, 3), (1, 1)), ((2, 2), (0, 1)), ((1, 4), (0, 2)), ((5, 3), (2, 1))]
)
@pytest.mark.parametrize("curvature", [1.0, 2.0, 5.0, 10.0, 25.0])
def test_it_is_a_convolution_to_within_what_leaks(kernel, padding, curvature):
    """With zeros around the image, also more of them than the kernel needs."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    (rows, columns), heads = kernel, kernel[0] * kernel[1]
    image, weight = normal(2, 3, *GRID), normal(4, 3, *kernel)
    pads = (max(rows // 2, padding[0]), max(columns // 2, padding[1]))
    preference = QuadraticGridPosition(
        GRID, heads, kernel, width=(2 * curvature) ** -0.5, padding=pads
    ).double()
    padded = torch.nn.functional.pad(image, (pads[1], pads[1], pads[0], pads[0])).flatten(2).mT.unsqueeze(1)
    value = padded.expand(-1, heads, -1, -1)
    log_u = log_weights(preference, inputs_of(GRID, pads, heads)).detach()
    nothing = torch.zeros(2, heads, GRID[0] * GRID[1], 3, dtype=torch.float64)
    shifted = F.attention(nothing, value, value, log_preference=log_u)
    maps = weight.flatten(2).permute(2, 0, 1)  # by head: (heads, out, in)
    found = torch.einsum("bhqi,hoi->boq", shifted, maps).unflatten(-1, GRID)
    sides = ((columns - 1) // 2, columns // 2, (rows - 1) // 2, rows // 2)  # as padding="same" has them
    expected = torch.nn.functional.conv2d(torch.nn.functional.pad(image, sides), weight)
    leakage, a = float(preference.leakage.detach().max()), curvature
    assert leakage == pytest.approx(
        min(1, 4 * (e := math.exp(-a) / (1 - math.exp(-3 * a))) * (1 + e)), rel=1e-5
    )
    farthest = torch.cdist(value[:, 0], value[:, 0]).max()
    norms = torch.linalg.matrix_norm(maps, 2).sum()
    error = (found - expected).detach().norm(dim=1).max()
    assert error <= leakage * farthest * norms * (1 + 1e-9) + 1e-12

    # The bound on the weight beside the centre holds for each pixel, and is no larger than twice what is there inside.
    beside = 1 - log_u.softmax(-1).amax(-1)
    assert float(beside.max()) <= leakage * (1 + 1e-6) + 1e-14
    if a >= 5 and min(kernel) > 1:
        assert leakage < 2 * float(beside.max())
