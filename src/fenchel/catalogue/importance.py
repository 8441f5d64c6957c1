"""Preferences that a whole input decides: what is important in it, and how pairs of its parts belong together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.entry import Entry, Inferrer, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.catalogue.random_inputs import believed, drawn, heads
from fenchel.nn.preference import Context
from fenchel.nn.preference.learned import ContextNetwork

_FAMILY = "Importance"


def _context(
    infer: Inferrer, sentence: Tensor, query: Tensor, key: Tensor, value: Tensor, network: ContextNetwork
) -> Tensor:
    belief = believed(Context(query.shape[1], network=network), query, key, key_inputs=sentence)
    return infer(Parts.scaled_dot(query, key, value, belief))


def _sentence_and_heads(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=4, keys=6)
    network = ContextNetwork(heads=2, key_dim=5, hidden=3).to(dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(drawn(generator, dtype, *parameter.shape))
    sentence = drawn(generator, dtype, 1, 6, 5)
    return {"sentence": sentence, "query": query, "key": key, "value": value, "network": network}


def _pair_bias(
    infer: Inferrer, pairs: Tensor, projection: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    # Heads before keys: in the other order each kernel would copy (H, m, n) numbers.
    belief = (projection.mT @ pairs.mT).transpose(1, 2)
    return infer(Parts.scaled_dot(query, key, value, belief))


def _pairs_and_heads(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=5)
    return {
        "pairs": drawn(generator, dtype, 1, 5, 5, 3),
        "projection": drawn(generator, dtype, 3, 2),
        "query": query,
        "key": key,
        "value": value,
    }


ENTRIES = (
    Entry(
        name="context",
        title="Importance from the whole input",
        family=_FAMILY,
        paper=Paper(
            "Anonymous",
            2024,
            "Deciphering attention mechanisms: optimization and Fenchel dual solutions",
            "section 7",
        ),
        formula="p_ij ∝ exp(f(X)_j) · exp(⟨q_i, k_j⟩/√d)",
        templates="k_j/√d",
        preference="u_j ∝ exp(f(X)_j), f a network of the whole sentence or image",
        evidence="q_i",
        meaning=(
            "Before any query asks, the whole input says which of its parts matter; all queries share that belief. It "
            "is what the papers add to attention once preference and evidence are told apart."
        ),
        exact_because="Mean and covariance under u are those of the important parts, computed once for all queries.",
        written=_context,
        example=_sentence_and_heads,
        symmetries=(
            Symmetry({"query": -2}),
            Symmetry({"sentence": -2, "key": -2, "value": -2}, None),
        ),
        layer={"preference": "Context(heads, key_dim=width)"},
    ),
    Entry(
        name="pair-bias",
        title="Bias from a pair representation",
        family=_FAMILY,
        paper=Paper(
            "Jumper et al.",
            2021,
            "Highly accurate protein structure prediction with AlphaFold",
            "supplement, algorithm 7",
        ),
        formula="p_ij ∝ exp(⟨w_h, b_ij⟩) · exp(⟨q_i, k_j⟩/√d)",
        templates="k_j/√d",
        preference="u_ij ∝ exp⟨w_h, b_ij⟩, b the representation of the pair",
        evidence="q_i",
        meaning=(
            "What is known of two residues as a pair, normalised, says how likely one is to matter to the other. The "
            "belief is a tensor with gradient, given as the log-preference. The paper gates the output too, which is "
            "no part of the inference."
        ),
        exact_because="The belief differs by query, so that mean and covariance under it do too.",
        written=_pair_bias,
        example=_pairs_and_heads,
    ),
)
