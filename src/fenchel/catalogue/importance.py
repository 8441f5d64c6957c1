"""Preferences that a whole input decides: what is important in it, and how pairs of its parts belong together."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fenchel.catalogue.declaration import Draw, Family, believed
from fenchel.catalogue.entry import Inferrer, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.nn.preference import Context
from fenchel.nn.preference.learned import ContextNetwork

FAMILY = Family("Importance")


def _sentence_and_heads(draw: Draw) -> dict[str, Any]:
    network = ContextNetwork(heads=2, key_dim=5, hidden=3)
    heads = draw.heads(queries=4, keys=6)
    return {**heads, "network": draw.module(network, size=1.0), "sentence": draw(1, 6, 5)}


@FAMILY.entry(
    title="Importance from the whole input",
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
    example=_sentence_and_heads,
    symmetries=(
        Symmetry({"query": -2}),
        Symmetry({"sentence": -2, "key": -2, "value": -2}, None),
    ),
    layer={"preference": "Context(heads, key_dim=width)"},
)
def _context(
    infer: Inferrer, sentence: Tensor, query: Tensor, key: Tensor, value: Tensor, network: ContextNetwork
) -> Tensor:
    belief = believed(Context(query.shape[1], network=network), query, key, key_inputs=sentence)
    return infer(Parts.scaled_dot(query, key, value, belief))


@FAMILY.entry(
    title="Bias from a pair representation",
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
    example=lambda draw: {**draw.heads(queries=5), "pairs": draw(1, 5, 5, 3), "projection": draw(3, 2)},
)
def _pair_bias(
    infer: Inferrer, pairs: Tensor, projection: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    # Heads before keys: in the other order each kernel would copy (H, m, n) numbers.
    belief = (projection.mT @ pairs.mT).transpose(1, 2)
    return infer(Parts.scaled_dot(query, key, value, belief))
