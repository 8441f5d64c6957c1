"""Evidence modules against the score formulas that they stand for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fenchel
from fenchel import functional
from fenchel.errors import ModelError, ProblemError
from fenchel.nn import MultiheadAttention, sinusoids
from fenchel.nn.evidence import (
    AbstractEvidence,
    AbstractPositionalEvidence,
    Content,
    General,
    NetworkEvidence,
    NoEvidence,
    RelativeGridKeys,
    RelativeKeys,
    RelativeTemplates,
    Rotary,
    ScaledDot,
    TransformerXL,
)
from fenchel.nn.preference import AttentionInputs, Causal, GridPosition, GridWindow
from tests.nn.placed_scores import scores
from tests.nn.preferences import as_log_weights, by_index
from tests.nn.small_layers import heads
from tests.normal import drawn
from tests.tiny_models import Encoder

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 5, 7, 8


def tensors(key_heads: int = HEADS, key_dim: int = DIM) -> tuple[Tensor, Tensor, Tensor]:
    key, value = drawn(BATCH, key_heads, KEYS, key_dim), drawn(BATCH, key_heads, KEYS, 3, seed=1)
    return drawn(BATCH, HEADS, QUERIES, DIM, seed=2), key, value


def attend(evidence: AbstractEvidence, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    z, templates, scale = evidence(query, key)
    return functional.attention(z, templates, value, scale=scale, enable_gqa=key.shape[1] < query.shape[1])


def randomised(evidence: AbstractEvidence) -> AbstractEvidence:
    evidence.double()
    with torch.no_grad():
        for seed, parameter in enumerate(evidence.parameters()):
            parameter.add_(0.5 * drawn(*parameter.shape, seed=seed))
    return evidence


def cosine(query: Tensor, key: Tensor) -> Tensor:
    return torch.cosine_similarity(query[..., :, None, :], key[..., None, :, :], dim=-1)


FORMULAS: dict[str, tuple[AbstractEvidence, Callable[[AbstractEvidence, Tensor, Tensor], Tensor]]] = {
    "dot": (ScaledDot(scale=1.0), lambda _, q, k: q @ k.mT),
    "general": (
        General(HEADS, DIM, 6),
        lambda e, q, k: torch.einsum("bhmi,hij,bhnj->bhmn", q, e.weight, k) / 6**0.5,  # pyright: ignore[reportArgumentType]
    ),
    "content": (
        Content(HEADS, sharpness=3.0),
        lambda e, q, k: e.log_sharpness.exp()[:, None, None] * cosine(q, k),  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    ),
    "content, fixed": (Content(1, sharpness=3.0, learned=False), lambda _, q, k: 3.0 * cosine(q, k)),
    "network": (
        NetworkEvidence(nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, DIM))),
        lambda e, q, k: e.network(q) @ k.mT / DIM**0.5,  # pyright: ignore[reportCallIssue]
    ),
}


@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("name", FORMULAS)
def test_attention_weights_are_the_softmax_of_the_score(name, key_heads):
    evidence, score = FORMULAS[name]
    randomised(evidence)
    query, key, value = tensors(key_heads, 6 if name == "general" else DIM)
    repeats = HEADS // key_heads
    every_key, every_value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    expected = score(evidence, query, every_key).softmax(-1) @ every_value
    found = attend(evidence, query, key, value)
    torch.testing.assert_close(found, expected)
    if parameters := list(evidence.parameters()):
        assert all(gradient.any() for gradient in torch.autograd.grad(found.square().sum(), parameters))
    assert not torch.allclose(attend(evidence, query, key, value), attend(evidence, -query, key, value))


def test_fresh_evidence_is_scaled_dot_and_content_stays_on_the_sphere():
    query, key, value = tensors()
    plain = attend(ScaledDot(), query, key, value)
    torch.testing.assert_close(attend(General(HEADS, DIM).double(), query, key, value), plain)
    content = Content(HEADS, sharpness=4.0).double()
    _, templates, _ = content(query, 5 * key)
    torch.testing.assert_close(templates.norm(dim=-1), torch.ones_like(templates[..., 0]))
    assert torch.isfinite(content(torch.zeros_like(query), key)[0]).all()


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_without_evidence_weights_are_the_preference(estimator):
    query, key, _ = tensors(key_dim=3)
    z, templates, scale = NoEvidence()(query, key)
    log_u = drawn(HEADS, QUERIES, KEYS, seed=1)
    found = functional.attention_weights(z, templates, scale=scale, log_preference=log_u, estimator=estimator)
    torch.testing.assert_close(found, log_u.softmax(-1).expand_as(found))


WIDTH, PLACED_HEADS, PLACED_DIM, TOKENS = 12, 3, 4, 6

EVIDENCE: dict[str, Callable[[], AbstractPositionalEvidence]] = {
    "rotary": lambda: Rotary(PLACED_DIM),
    "rotary, halves": lambda: Rotary(PLACED_DIM, layout="halves"),
    "relative keys": lambda: RelativeKeys(PLACED_HEADS, PLACED_DIM, max_distance=2),
    "relative keys, shared": lambda: RelativeKeys(1, PLACED_DIM, max_distance=3),
    "transformer-xl": lambda: TransformerXL(PLACED_HEADS, PLACED_DIM, width=6),
    "grid": lambda: RelativeGridKeys(PLACED_HEADS, PLACED_DIM, grid=(2, 3), reach=1),
}


def placed(name: str) -> AbstractPositionalEvidence:
    evidence = EVIDENCE[name]().double()
    for seed, parameter in enumerate(evidence.parameters()):
        parameter.data.copy_(drawn(*parameter.shape, seed=seed))
    return evidence


def build(name: str, **options: Any) -> MultiheadAttention:
    torch.manual_seed(3)
    layer = MultiheadAttention(
        WIDTH, PLACED_HEADS, batch_first=True, evidence=EVIDENCE[name](), dtype=torch.float64, **options
    ).double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(0.5 * drawn(*parameter.shape, seed=seed))
    return layer


def by_hand(layer: MultiheadAttention, x: Tensor, log_u: Tensor) -> Tensor:
    q, k, v = heads(layer, x)
    weights = (scores(layer.evidence, q, k) + log_u).softmax(-1)
    return layer.out_proj((weights @ v).transpose(1, 2).flatten(2))


def gradients(output: Tensor, layer: nn.Module, x: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return list(torch.autograd.grad((output * weight).sum(), [x, *layer.parameters()]))


@pytest.mark.parametrize("name", EVIDENCE)
def test_a_layer_attends_so_with_masks_and_padding(name):
    layer, x = build(name, preference=Causal()), drawn(2, TOKENS, WIDTH).requires_grad_()
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, -2:] = True
    forbidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1) | padding[:, None, None]
    log_u = torch.zeros(2, 1, TOKENS, TOKENS, dtype=torch.float64).masked_fill(forbidden, -torch.inf)
    output, weights = layer(x, x, x, key_padding_mask=padding)
    expected = by_hand(layer, x, log_u)
    torch.testing.assert_close(output, expected)
    assert not weights[1, :, -2:].any()
    plain, _ = layer(x, x, x, key_padding_mask=padding, need_weights=False)
    torch.testing.assert_close(plain, expected)
    torch.testing.assert_close(gradients(plain, layer, x), gradients(expected, layer, x))


@pytest.mark.parametrize("name", EVIDENCE)
def test_an_audit_measures_templates_that_queries_share_in_the_space_of_keys(name, tmp_path):
    model, rotary = Encoder(build(name), build("rotary")).eval(), name.startswith("rotary")

    def audited(space: str) -> Any:
        batches = [{"tokens": drawn(2, TOKENS, WIDTH)}]
        return fenchel.audit(model, None, batches, space=space, baseline="none", directory=tmp_path / space)

    if rotary:
        assert len(audited("key").heads) == 2 * PLACED_HEADS
    kind = type(model.layers[0].evidence).__name__
    by_query = rf"layers.0 is a MultiheadAttention, whose templates differ by query .*{kind}"
    with pytest.raises(ModelError, match="not a linear map of its input" if rotary else by_query):
        audited("input" if rotary else "key")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pairs_turn_alike_wherever_they_lie_in_memory_and_so_do_their_gradients(dtype):
    drawn_flat = drawn(1 + 2 * 3 * 6).to(dtype)
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    for lying in (
        lambda flat: flat[1:].view(1, 2, 3, 6),
        lambda flat: flat[1:].view(1, 3, 2, 6).transpose(1, 2),
        lambda flat: flat[1:].view(1, 2, 6, 3).mT,
        lambda flat: flat[:6].expand(1, 2, 3, 6),
    ):
        found = []
        for layout in ("pairs", "halves"):
            flat = drawn_flat.clone().requires_grad_()
            vectors = lying(flat) if layout == "pairs" else lying(flat)[..., order]
            turned = Rotary(6, layout=layout)(vectors, vectors, query_offset=2)[0]
            turned = turned[..., order] if layout == "pairs" else turned
            (gradient,) = torch.autograd.grad((turned * torch.arange(6)).sum(), flat)
            found.append((turned, gradient))
        torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("name", EVIDENCE)
def test_later_queries_have_the_rows_of_the_whole_given_their_offset(name):
    layer, x = build(name, preference=Causal()), drawn(1, TOKENS, WIDTH)
    whole, _ = layer(x, x, x)
    last, _ = layer(x[:, 4:], x, x, query_offset=4)
    torch.testing.assert_close(last, whole[:, 4:])
    layer.preference = None
    with pytest.raises(ProblemError, match="query_offset is not given"):
        layer(x[:, 4:], x, x)


def test_angles_of_far_places_keep_their_digits_in_half_types():
    query = torch.ones(1, 1, 1, 2)
    exact = Rotary(2)(query.double(), query.double(), query_offset=100_003)[0]
    half = Rotary(2).to(torch.bfloat16)(query.bfloat16(), query.bfloat16(), query_offset=100_003)[0]
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=2e-2)


@pytest.mark.parametrize("layout", ["pairs", "halves"])
def test_a_shift_turns_sinusoids_whatever_the_place(layout):
    places, by = torch.tensor([-3.0, 0.0, 2.5, 40.0], dtype=torch.float64), 7.0
    before, after = (sinusoids(places + shift, 8, layout=layout) for shift in (0.0, by))
    angles = by * 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    rotation = torch.zeros(8, 8, dtype=torch.float64)
    for pair, angle in enumerate(angles):
        s, c = (2 * pair, 2 * pair + 1) if layout == "pairs" else (pair, pair + 4)
        rotation[s, s] = rotation[c, c] = angle.cos()
        rotation[s, c], rotation[c, s] = angle.sin(), -angle.sin()
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(8, dtype=torch.float64))
    torch.testing.assert_close(after, before @ rotation.T)


def test_a_grid_has_a_number_for_every_offset_with_its_gradient_and_a_window_of_pixels():
    position, window = GridPosition(PLACED_HEADS, (3, 4)).double(), GridWindow((3, 4), reach=1)
    inputs = AttentionInputs(2, PLACED_HEADS, 10, 12, torch.device("cpu"), torch.float64, query_offset=2)
    found: Any = position(inputs)
    seen: Any = window(inputs)
    weight = drawn(*found.shape)
    expected = torch.zeros_like(position.bias)
    for i, j in torch.cartesian_prod(torch.arange(10), torch.arange(12)).tolist():
        down, across = (i + 2) // 4 - j // 4, (i + 2) % 4 - j % 4
        assert bool(seen[0, 0, i, j]) is (abs(down) <= 1 and abs(across) <= 1)
        assert torch.equal(found[0, :, i, j], position.bias[:, down + 2, across + 3])
        expected[:, down + 2, across + 3] += weight[0, :, i, j]
    (gradient,) = torch.autograd.grad((found * weight).sum(), position.bias)
    torch.testing.assert_close(gradient, expected)
    both = position * window
    torch.testing.assert_close(by_index(both, inputs), as_log_weights(both(inputs), inputs))


def test_templates_of_pairs_come_from_evidence_that_says_so():
    class Unsaid(AbstractEvidence):
        def forward(self, query: Tensor, key: Tensor) -> Any:
            return query, RelativeTemplates(key, key[:, :, :1]), 1.0

    layer, x = MultiheadAttention(WIDTH, HEADS, batch_first=True, evidence=Unsaid()), torch.randn(1, 3, WIDTH)
    with pytest.raises(ProblemError, match="Unsaid returned templates of type RelativeTemplates"):
        layer(x, x, x)
    with pytest.raises(ProblemError, match="expected a last dimension above 0"):
        ScaledDot()(drawn(1, 2, 3, 0), drawn(1, 2, 3, 0))
