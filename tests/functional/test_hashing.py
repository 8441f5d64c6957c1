"""Attention to keys in the same buckets: it is attention with a sparse preference, and the Reformer's."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fenchel import functional as F
from tests.normal import drawn
from tests.side_effects import Made

TOKENS, DIM = 23, 4
RULES = list(itertools.product((False, True), repeat=4))


def call(
    rounds: int, padded: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    x, value = drawn(2, 2, TOKENS, DIM, seed=seed), drawn(2, 2, TOKENS, 3, seed=seed + 1)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, [2, -2, -1]] = True
    buckets = F.hash_buckets(x, drawn(2, DIM, rounds, 3, seed=seed + 2))
    return x, normalize(x, dim=-1), value, buckets, padding if padded else None


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("rounds", "chunk", "before", "after"), [(1, 4, 1, 0), (2, 9, 1, 1), (3, 4, 1, 0), (2, 23, 0, 1)]
)
def test_it_is_attention_with_a_preference_for_whom_a_token_meets(rounds, chunk, before, after, padded):
    query, key, value, buckets, padding = call(rounds, padded)
    weight = drawn(*value.shape, seed=9)
    for rule in RULES:
        named = dict(zip(("causal", "same_bucket", "count_meetings", "self_last"), rule, strict=True))
        options = {"chunk": chunk, "before": before, "after": after, "key_padding": padding, **named}
        log_u = F.hashing_log_preference(buckets, dtype=torch.float64, **options)
        for estimator in ("first_order", "second_order"):
            given = [part.clone().requires_grad_() for part in (query, key, value)]
            asked: dict[str, Any] = {"alpha": 1.7, "scale": 0.8, "estimator": estimator}
            found = F.hashing_attention(given[0], given[1], given[2], buckets, **options, **asked)
            expected = F.attention(*given, log_preference=log_u, **asked)
            torch.testing.assert_close(found, expected)
            slopes = (torch.autograd.grad((each * weight).sum(), given) for each in (found, expected))
            torch.testing.assert_close(*slopes)


def theirs(rounds: int, decoder: bool, before: int, after: int) -> Any:
    """The layer of transformers, with two heads of 4, 6 buckets and chunks of 4."""
    modeling = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    from transformers import ReformerConfig

    config = ReformerConfig(
        num_attention_heads=2,
        attention_head_size=DIM,
        hidden_size=2 * DIM,
        num_hashes=rounds,
        num_buckets=6,
        lsh_attn_chunk_length=4,
        lsh_num_chunks_before=before,
        lsh_num_chunks_after=after,
        is_decoder=decoder,
        hash_seed=5,
        lsh_attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    return modeling.LSHSelfAttention(config, layer_idx=0).double().eval()


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, DIM)).transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("rounds", "decoder", "before", "after"),
    [(1, True, 1, 0), (2, True, 1, 0), (4, False, 1, 0), (3, False, 1, 1), (2, False, 0, 0)],
)
def test_it_is_the_reformer_of_transformers(rounds, decoder, before, after, padded):
    layer, x = theirs(rounds, decoder, before, after), drawn(2, 24, 2 * DIM)
    keep = torch.ones(2, 24, dtype=torch.bool)
    keep[0, 20:] = not padded
    with torch.no_grad():
        answer = layer(x, attention_mask=keep.long() if padded else None)
        query, value = split(layer.query_key(x)), split(layer.value(x))
        key = layer._len_and_dim_norm(query, DIM**0.5)
        torch.manual_seed(5)
        rotations = torch.randn(2, DIM, rounds, 3, dtype=torch.float64)
        buckets = F.hash_buckets(query, rotations)
        options = {"chunk": 4, "before": before, "after": after, "causal": decoder, "scale": 1.0}
        padding = ~keep if padded else None
        found = F.hashing_attention(query, key, value, buckets, key_padding=padding, **options)
    expected = split(answer.hidden_states)
    seen = keep[:, None, :, None].expand_as(expected)
    torch.testing.assert_close(found[seen], expected[seen])
    # Its keys are those of the paper but for a number that it adds to mean squares.
    torch.testing.assert_close(key, normalize(query, dim=-1), rtol=1e-3, atol=1e-6)
    if not padded:
        numbers = 6 * torch.arange(rounds)[:, None]
        assert torch.equal(answer.buckets.view(2, 2, rounds, 24), buckets + numbers)


def test_nothing_of_the_size_of_all_pairs_is_made():
    query, value = drawn(1, 1, 1024, 8).requires_grad_(), drawn(1, 1, 1024, 8).requires_grad_()
    with Made() as made:
        buckets = F.hash_buckets(query, drawn(1, 8, 2, 8))
        F.hashing_attention(query, query, value, buckets, chunk=8).sum().backward()
    assert max(tensor.numel() for tensor in made.tensors) < 1024**2 / 8
