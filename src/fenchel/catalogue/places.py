"""How attention knows where tokens are without templates of pairs: places in the input, in the belief, or in angles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.believed import believed
from fenchel.catalogue.drawn import drawn, drawn_module, heads
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.nn import sinusoids
from fenchel.nn.evidence import Rotary
from fenchel.nn.preference import AbstractPreference, ALiBi, Causal, RelativePosition, Window

__all__ = ["ENTRIES"]

_FAMILY = "Scores and places"


def _learned(infer: Inferrer, x: Tensor, places: Tensor, project: Tensor) -> Tensor:
    query, key, value = _projected(x + places, project)
    return infer(Parts.scaled_dot(query, key, value))


def _sinusoidal(infer: Inferrer, x: Tensor, project: Tensor) -> Tensor:
    places = sinusoids(torch.arange(x.shape[1], dtype=x.dtype, device=x.device), x.shape[2])
    return _learned(infer, x, places, project)


def _projected(x: Tensor, project: Tensor) -> Tensor:
    """Query, key and value of all heads, (3, B, H, n, d), by maps (3, H, width, d)."""
    return x.unsqueeze(1) @ project.unsqueeze(1)


def _t5(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, network: RelativePosition) -> Tensor:
    return infer(_believing(network, query, key, value, scale=1.0))


def _alibi(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(_believing(Causal() * ALiBi(query.shape[1]), query, key, value))


def _causal(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(_believing(Causal(), query, key, value))


def _sliding_window(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    return infer(_believing(Window(width // 2, width // 2), query, key, value))


def _believing(
    belief: AbstractPreference, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None
) -> Parts:
    own = key.shape[-1] ** -0.5 if scale is None else scale
    return Parts(
        templates=key * own, evidence=query, values=value, log_preference=believed(belief, query, key)
    )


def _rotary(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    evidence, templates, scale = Rotary(query.shape[-1])(query, key)
    return infer(Parts(templates=templates * scale, evidence=evidence, values=value))


def _tokens(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {"x": drawn(generator, dtype, 1, 5, 6), "project": drawn(generator, dtype, 3, 2, 6, 3) / 2}


def _tokens_and_places(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_tokens(generator, dtype), "places": drawn(generator, dtype, 5, 6)}


def _heads(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=6, value_dim=3)
    return {"query": query, "key": key, "value": value}


def _heads_and_buckets(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    network = RelativePosition(heads=2, buckets=8, max_distance=6)
    return {**_heads(generator, dtype), "network": drawn_module(generator, dtype, network)}


def _heads_and_width(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_heads(generator, dtype), "width": 2}


ENTRIES = (
    Entry(
        name="learned-absolute",
        title="Learned absolute places",
        family=_FAMILY,
        paper=Paper(
            "Devlin et al.",
            2019,
            "BERT: pre-training of deep bidirectional transformers for language understanding",
            "section 3",
        ),
        formula="p_ij ∝ exp(⟨Q(x_i + a_i), K(x_j + a_j)⟩/√d)",
        templates="K(x_j + a_j)/√d, a_j a learned vector of place j",
        preference="uniform",
        evidence="Q(x_i + a_i)",
        values="V(x_j + a_j)",
        meaning=(
            "A place is part of what a token is: it is in the query, in the template and in the value. Attention "
            "itself does not look at order; tokens that move with their places move their answers. The model adds "
            "places once, below its first layer, and normalises the sums, which is left out here."
        ),
        exact_because="Places change the mean and the spread of the templates, not their scores alone.",
        written=_learned,
        example=_tokens_and_places,
        symmetries=(Symmetry({"x": -2, "places": -2}),),
    ),
    Entry(
        name="sinusoidal",
        title="Sinusoidal places",
        family=_FAMILY,
        paper=Paper("Vaswani et al.", 2017, "Attention is all you need", "section 3.5"),
        formula=(
            "p_ij ∝ exp(⟨Q(x_i + s_i), K(x_j + s_j)⟩/√d),  s_i = (sin ω_c i, cos ω_c i)_c,  ω_c = 10000^{−2c/w}\n"
            "√d times the score is a sum of four: x_iᵀ M x_j + x_iᵀ M s_j + s_iᵀ M x_j + s_iᵀ M s_j,  M = QᵀK"
        ),
        templates="K(x_j + s_j)/√d",
        preference="uniform",
        evidence="Q(x_i + s_i)",
        values="V(x_j + s_j)",
        meaning=(
            "As learned places, with codes of which a shift is a rotation: s_{i+r} is s_i with its pairs turned by "
            "angles in proportion to r, so that a linear map can look a distance away. The slides lose the exponent "
            "and print 10000·2i/d."
        ),
        because=(
            "The last of the four terms looks at no token, and could be read as a preference; the published model asks "
            "with all four."
        ),
        exact_because="Places change the mean and the spread of the templates, not their scores alone.",
        written=_sinusoidal,
        example=_tokens,
    ),
    Entry(
        name="t5",
        title="T5's relative position",
        family=_FAMILY,
        paper=Paper(
            "Raffel et al.",
            2020,
            "Exploring the limits of transfer learning with a unified text-to-text transformer",
            "section 2.1",
        ),
        formula="p_ij ∝ exp(b_{β(j−i)}) · exp⟨q_i, k_j⟩",
        templates="k_j",
        preference="u_ij ∝ exp(b_{β(j−i)}), β a bucket of distances and b a number of each head and bucket",
        evidence="q_i",
        meaning=(
            "How far away a key is says how likely it is to matter, before the query has looked at any. There is no "
            "√d: it is absorbed in how the model starts. A decoder multiplies by the causal mask."
        ),
        exact_because="The belief differs by query, and so do the mean and the covariance that are inferred from.",
        written=_t5,
        example=_heads_and_buckets,
        layer={"preference": "RelativePosition(heads)", "evidence": "ScaledDot(scale=1.0)"},
    ),
    Entry(
        name="alibi",
        title="Attention with linear biases (ALiBi)",
        family=_FAMILY,
        paper=Paper(
            "Press et al.",
            2022,
            "Train short, test long: attention with linear biases enables input length extrapolation",
            "section 3",
        ),
        formula="p_ij ∝ exp(−s_h (i − j)) · exp(⟨q_i, k_j⟩/√d) for j ≤ i,  s_h = 2^{−8h/H}",
        templates="k_j/√d",
        preference="u_ij ∝ exp(−s_h (i − j)) for j ≤ i, else 0",
        evidence="q_i",
        meaning=(
            "The last key is likeliest, and each one before it less so by a factor of its head: a geometric belief, "
            "the same for texts of any length. Numbers that depend on i alone change nothing, so −s_h (i − j) and s_h "
            "j are one belief. Where H is no power of 2 the slopes are those of the published code, as they are here."
        ),
        exact_because=(
            "As a head gets steeper its belief goes to the last key alone, and there is nothing to correct; a flat one "
            "has the covariance of all the past."
        ),
        written=_alibi,
        example=_heads,
        layer={"preference": "Causal() * ALiBi(heads)", "evidence": "ScaledDot()"},
    ),
    Entry(
        name="rotary",
        title="Rotary places (RoPE)",
        family=_FAMILY,
        paper=Paper(
            "Su et al.",
            2021,
            "RoFormer: enhanced transformer with rotary position embedding",
            "eqs. (14)-(16)",
        ),
        formula="p_ij ∝ exp(⟨R_i q_i, R_j k_j⟩/√d) = exp(⟨q_i, R_{j−i} k_j⟩/√d)",
        templates="R_j k_j/√d, R_j turning pairs of coordinates by angles in proportion to j",
        preference="uniform",
        evidence="R_i q_i",
        meaning=(
            "A template is turned by its own place, whoever asks, so that all queries share the templates. Scores see "
            "distances alone."
        ),
        because=(
            "Turning all places together turns the whole problem and changes no length: exact inference sees distances "
            "alone as well."
        ),
        exact_because="Equal keys at different places are different templates, and enter the covariance as such.",
        written=_rotary,
        example=_heads,
        layer={"evidence": "Rotary(d)"},
    ),
    Entry(
        name="causal",
        title="Causal attention",
        family=_FAMILY,
        paper=Paper("Vaswani et al.", 2017, "Attention is all you need", "section 3.2.3"),
        formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) for j ≤ i, else 0",
        templates="k_j/√d",
        preference="uniform on j ≤ i",
        evidence="q_i",
        meaning=(
            "What comes later cannot matter: weight 0 before looking stays 0, for every estimator and for every "
            "closeness here but transport. How many keys a query sees tells its place; in what order they stand one "
            "layer does not see."
        ),
        exact_because="The first query sees one key, and has nothing to infer; later ones have more.",
        written=_causal,
        example=_heads,
        layer={"preference": "Causal()", "evidence": "ScaledDot()"},
    ),
    Entry(
        name="sliding-window",
        title="Sliding window (Longformer)",
        family=_FAMILY,
        paper=Paper("Beltagy et al.", 2020, "Longformer: the long-document transformer", "section 3.1"),
        formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) for |j − i| ≤ w/2, else 0",
        templates="k_j/√d",
        preference="uniform on w + 1 places around i",
        evidence="q_i",
        meaning=(
            "Only neighbours can matter, and layers reach farther together. The paper's dilated window is the same "
            "with gaps; its global tokens are a mask that lets some queries and keys see all, with maps of their own."
        ),
        exact_because="Mean and covariance are those of the few templates in the window.",
        written=_sliding_window,
        example=_heads_and_width,
        layer={"preference": "Window(w // 2, w // 2)", "evidence": "ScaledDot()"},
    ),
)
