"""Preferences computed from the whole input: the importance of its parts, and of pairs of its parts."""

from __future__ import annotations

from torch import Tensor

from fenchel.catalogue.declaration import Family, cited, heads, log_weights_of, queries_or_keys
from fenchel.catalogue.entry import Inferrer
from fenchel.catalogue.parts import Parts
from fenchel.nn.preference import Context
from fenchel.nn.preference.learned import ContextNetwork

FAMILY = Family("Importance")


@FAMILY.entry(
    title="Importance from the whole input",
    paper=cited("anonymous2024", "section 7"),
    formula="p_ij ∝ exp(f(X)_j) · exp(⟨q_i, k_j⟩/√d)",
    preference="u_j ∝ exp(f(X)_j), f a network applied to the whole sentence or image",
    exact_because="Mean and covariance under u are those of the important parts, shared by all queries.",
    example=lambda draw: {
        **draw.inputs(heads(queries=4, keys=6)),
        "network": draw.module(ContextNetwork(heads=2, key_dim=5, hidden=3), size=1.0),
        "sentence": draw(1, 6, 5),
    },
    symmetries=queries_or_keys(with_key={"sentence": -2}),
    layer={"preference": "Context(heads, key_dim=width)"},
)
def _context(
    infer: Inferrer, sentence: Tensor, query: Tensor, key: Tensor, value: Tensor, network: ContextNetwork
) -> Tensor:
    """The whole input determines which of its parts are important, independent of the query.

    All queries share this preference. It is the papers' extension of attention, made possible by the distinction of
    preference and evidence.
    """
    belief = log_weights_of(Context(query.shape[1], network=network), query, key, key_inputs=sentence)
    return infer(Parts.scaled_dot(query, key, value, belief))


@FAMILY.entry(
    title="Bias from a pair representation",
    paper=cited("jumper2021", "supplement, algorithm 7"),
    formula="p_ij ∝ exp(⟨w_h, b_ij⟩) · exp(⟨q_i, k_j⟩/√d)",
    preference="u_ij ∝ exp⟨w_h, b_ij⟩, b the representation of the pair",
    exact_because="The preference differs by query, and so do mean and covariance under it.",
    example={**heads(queries=5), "pairs": (1, 5, 5, 3), "projection": (3, 2)},
)
def _pair_bias(
    infer: Inferrer, pairs: Tensor, projection: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    # Heads before keys: otherwise each kernel would copy (H, m, n) numbers.
    """The normalised representation of a pair of residues determines how likely one is relevant to the other.

    This log-preference is a tensor with gradient. The paper also gates the output, which is not part of the inference.
    """
    belief = (projection.mT @ pairs.mT).transpose(1, 2)
    return infer(Parts.scaled_dot(query, key, value, belief))
