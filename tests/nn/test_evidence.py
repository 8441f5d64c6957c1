"""Evidence modules against the score formulas that they stand for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.nn.evidence import AbstractEvidence, Content, General, NetworkEvidence, NoEvidence, ScaledDot

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 5, 7, 8


def tensors(key_heads: int = HEADS, key_dim: int = DIM) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    key, value = drawn(BATCH, key_heads, KEYS, key_dim), drawn(BATCH, key_heads, KEYS, 3)
    return drawn(BATCH, HEADS, QUERIES, DIM), key, value


def attend(evidence: AbstractEvidence, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    z, templates, scale = evidence(query, key)
    return functional.attention(z, templates, value, scale=scale, enable_gqa=key.shape[1] < query.shape[1])


def randomised(evidence: AbstractEvidence) -> AbstractEvidence:
    generator = torch.Generator().manual_seed(1)
    evidence.double()
    with torch.no_grad():
        for parameter in evidence.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return evidence


def cosine(query: Tensor, key: Tensor) -> Tensor:
    return torch.cosine_similarity(query[..., :, None, :], key[..., None, :, :], dim=-1)


FORMULAS: dict[str, tuple[AbstractEvidence, Callable[[AbstractEvidence, Tensor, Tensor], Tensor]]] = {
    "scaled dot": (ScaledDot(), lambda _, q, k: q @ k.mT / DIM**0.5),
    "dot": (ScaledDot(scale=1.0), lambda _, q, k: q @ k.mT),
    "general": (
        General(HEADS, DIM),
        lambda e, q, k: torch.einsum("bhmi,hij,bhnj->bhmn", q, e.weight, k) / DIM**0.5,  # pyright: ignore[reportArgumentType]
    ),
    "luong's general, shared": (
        General(1, DIM, scale=1.0),
        lambda e, q, k: torch.einsum("bhmi,ij,bhnj->bhmn", q, e.weight[0], k),  # pyright: ignore[reportArgumentType, reportIndexIssue]
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
    query, key, value = tensors(key_heads)
    repeats = HEADS // key_heads
    every_key, every_value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    expected = score(evidence, query, every_key).softmax(-1) @ every_value
    torch.testing.assert_close(attend(evidence, query, key, value), expected)
    assert not torch.allclose(attend(evidence, query, key, value), attend(evidence, -query, key, value))


@pytest.mark.parametrize("name", ["general", "luong's general, shared", "content", "network"])
def test_gradients_reach_what_is_learned(name):
    evidence, _ = FORMULAS[name]
    randomised(evidence)
    parameters = list(evidence.parameters())
    gradients = torch.autograd.grad(attend(evidence, *tensors()).square().sum(), parameters)
    assert all(gradient.any() for gradient in gradients)


def test_fresh_evidence_is_sensible():
    query, key, value = tensors()
    plain = attend(ScaledDot(), query, key, value)
    torch.testing.assert_close(attend(General(HEADS, DIM).double(), query, key, value), plain)
    assert Content(2, sharpness=4.0).log_sharpness.exp().tolist() == pytest.approx([4.0, 4.0])
    assert list(Content(2, learned=False).parameters()) == []


def test_general_relates_queries_and_keys_of_different_dimension():
    query, key, value = tensors(key_dim=6)
    z, templates, scale = General(HEADS, DIM, 6).double()(query, key)
    assert z.shape == (BATCH, HEADS, QUERIES, 6)
    assert templates is key
    assert scale == pytest.approx(6**-0.5)
    assert attend(General(HEADS, DIM, 6).double(), query, key, value).shape == (BATCH, HEADS, QUERIES, 3)


def test_sharpness_stays_positive_and_templates_on_the_sphere():
    query, key, _ = tensors()
    content = Content(HEADS, sharpness=2.0).double()
    with torch.no_grad():
        content.log_sharpness.sub_(20.0)
    z, templates, scale = content(query, 5 * key)
    assert (z.norm(dim=-1) > 0).all()
    torch.testing.assert_close(templates.norm(dim=-1), torch.ones_like(templates[..., 0]))
    assert scale == 1.0
    zero = torch.zeros_like(query)
    assert torch.isfinite(content(zero, key)[0]).all()


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_without_evidence_weights_are_the_preference(estimator):
    query, key, _ = tensors(key_dim=3)
    z, templates, scale = NoEvidence()(query, key)
    log_u = torch.randn(HEADS, QUERIES, KEYS, dtype=query.dtype, generator=torch.Generator().manual_seed(1))
    found = functional.attention_weights(z, templates, scale=scale, log_preference=log_u, estimator=estimator)
    torch.testing.assert_close(found, log_u.softmax(-1).expand_as(found))
