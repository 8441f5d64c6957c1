"""Templates of pairs: a key, and where it is from the query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.believed import believed
from fenchel.catalogue.drawn import drawn, drawn_module
from fenchel.catalogue.entry import Entry, Paper
from fenchel.catalogue.relative_parts import RelativeParts
from fenchel.catalogue.verdict import Verdict
from fenchel.nn.arguments import combined
from fenchel.nn.evidence import AbstractPositionalEvidence, RelativeGridKeys, RelativeKeys, TransformerXL
from fenchel.nn.preference import Causal, GridWindow

__all__ = ["ENTRIES"]

_FAMILY = "Scores and places"


def _asked(
    evidence: AbstractPositionalEvidence,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    belief: Tensor | None = None,
    *,
    offset: int = 0,
    relative_values: Tensor | None = None,
) -> RelativeParts:
    z, (keys, table, index, tied), scale = evidence(query, key, query_offset=offset)
    return RelativeParts(
        templates=keys * scale,
        relative=table * scale,
        index=index,
        evidence=z,
        values=value,
        relative_values=relative_values,
        log_preference=combined([tied, belief]),
    )


def _transformer_xl(
    infer: Inferrer, x: Tensor, memory: Tensor, project: Tensor, network: TransformerXL
) -> Tensor:
    seen = torch.cat([memory, x], 1)
    query, key, value = _heads_of(x, project[0]), _heads_of(seen, project[1]), _heads_of(seen, project[2])
    offset = memory.shape[1]
    past = believed(Causal(), query, key, query_offset=offset)
    return infer(_asked(network, query, key, value, past, offset=offset))


def _two_streams(
    infer: Inferrer,
    x: Tensor,
    asking: Tensor,
    memory: Tensor,
    order: Tensor,
    project: Tensor,
    network: TransformerXL,
) -> Tensor:
    seen, offset = torch.cat([memory, x], 1), memory.shape[1]
    key, value = _heads_of(seen, project[1]), _heads_of(seen, project[2])
    remembered = torch.ones(x.shape[1], offset, dtype=torch.bool, device=x.device)
    streams = []
    for stream, known in ((x, order <= order.unsqueeze(-1)), (asking, order < order.unsqueeze(-1))):
        query = _heads_of(stream, project[0])
        belief = torch.cat([remembered, known], 1)
        streams.append(infer(_asked(network, query, key, value, belief, offset=offset)))
    return torch.stack(streams)


def _shaw(
    infer: Inferrer, x: Tensor, project: Tensor, network: RelativeKeys, value_vectors: Tensor
) -> Tensor:
    query, key, value = (_heads_of(x, own) for own in project)
    return infer(_asked(network, query, key, value, relative_values=value_vectors[None, None]))


def _stand_alone(infer: Inferrer, x: Tensor, project: Tensor, network: RelativeGridKeys) -> Tensor:
    query, key, value = (_heads_of(x, own) for own in project)
    near = believed(GridWindow(network.grid, network.reach), query, key)
    return infer(_asked(network, query, key, value, near))


def _heads_of(x: Tensor, weight: Tensor) -> Tensor:
    """(B, n, width) by maps (H, width, d): (B, H, n, d)."""
    return x.unsqueeze(1) @ weight


def _text(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {"x": drawn(generator, dtype, 1, 5, 6), "project": drawn(generator, dtype, 3, 2, 6, 4) / 2}


def _text_and_memory(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        **_text(generator, dtype),
        "memory": drawn(generator, dtype, 1, 2, 6),
        "network": drawn_module(generator, dtype, TransformerXL(heads=2, dim=4, width=6)),
    }


def _text_in_order(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        **_text_and_memory(generator, dtype),
        "asking": drawn(generator, dtype, 1, 5, 6),
        "order": torch.randperm(5, generator=generator),
    }


def _text_and_vectors(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        **_text(generator, dtype),
        "network": drawn_module(generator, dtype, RelativeKeys(heads=1, dim=4, max_distance=2)),
        "value_vectors": drawn(generator, dtype, 5, 4),
    }


def _image(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "x": drawn(generator, dtype, 1, 8, 6),
        "project": drawn(generator, dtype, 3, 2, 6, 4) / 2,
        "network": drawn_module(generator, dtype, RelativeGridKeys(2, 4, grid=(2, 4), reach=1)),
    }


_TIES = (
    "The position term is linear in the query, and so it is read as evidence; like any score it could be belief "
    "instead, in which nothing is corrected. That a template is a key plus the vector of a place, as Shaw et al. write "
    "it, is a choice too: longer templates that all queries share can have the same scores, and make another exact "
    "problem."
)

ENTRIES = (
    Entry(
        name="transformer-xl",
        title="Transformer-XL",
        family=_FAMILY,
        paper=Paper(
            "Dai et al.",
            2019,
            "Transformer-XL: attentive language models beyond a fixed-length context",
            "section 3.3",
        ),
        formula=(
            "p_ij ∝ exp((⟨q_i, k_j⟩ + ⟨q_i, W R_{i−j}⟩ + ⟨u, k_j⟩ + ⟨v, W R_{i−j}⟩)/√d) for j ≤ i\n"
            "R the sinusoidal code of a distance, keys of the segment before included"
        ),
        templates="(k_j + W R_{i−j})/√d, other ones for each query",
        preference="u_ij ∝ exp((⟨u, k_j⟩ + ⟨v, W R_{i−j}⟩)/√d) for j ≤ i",
        evidence="q_i",
        meaning=(
            "Two of the four terms look at no query: an importance of each key and one of each distance. They are "
            "belief; the other two are what the query says of what a key is and how far back it is."
        ),
        because=_TIES,
        exact_because=(
            "Mean and covariance under u, of the query's own templates, enter; the belief is not corrected."
        ),
        written=_transformer_xl,
        example=_text_and_memory,
        layer={"preference": "Causal()", "evidence": "TransformerXL(heads, d, width)"},
    ),
    Entry(
        name="xlnet",
        title="Two-stream attention (XLNet)",
        family=_FAMILY,
        paper=Paper(
            "Yang et al.",
            2019,
            "XLNet: generalized autoregressive pretraining for language understanding",
            "section 2.3",
        ),
        formula=(
            "h_i asks keys of h with o_j ≤ o_i;  g_i asks keys of h with o_j < o_i,  o the order of factorisation\n"
            "scores as Transformer-XL's"
        ),
        templates="(K h_j + W R_{i−j})/√d, other ones for each query",
        preference="u_ij ∝ exp((⟨u, k_j⟩ + ⟨v, W R_{i−j}⟩)/√d) where o_j ≤ o_i; where o_j < o_i",
        evidence="Q h_i; Q g_i",
        values="V h_j",
        meaning=(
            "A text is predicted in any order. The content stream knows the token at its place, the query stream the "
            "place alone: the second asks the same templates and may not see its own. Segments, which the model "
            "encodes likewise, are left out."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "Two inferences with templates in common, side by side. In the order of the text the content stream is "
            "Transformer-XL's causal attention."
        ),
        exact_because="Each stream is corrected by the covariance of what it may see.",
        written=_two_streams,
        example=_text_in_order,
    ),
    Entry(
        name="shaw",
        title="Relative position representations",
        family=_FAMILY,
        paper=Paper(
            "Shaw et al.", 2018, "Self-attention with relative position representations", "eqs. (3), (4)"
        ),
        formula=(
            "o_i = Σ_j p_ij (v_j + b_{clip(j−i)}),  p_ij ∝ exp(⟨q_i, k_j + a_{clip(j−i)}⟩/√d)\n"
            "clip(r) = max(−K, min(K, r))"
        ),
        templates="(k_j + a_{clip(j−i)})/√d, other ones for each query",
        preference="uniform",
        evidence="q_i",
        values="v_j + b_{clip(j−i)}",
        meaning=(
            "Each distance up to K has a vector that is learned, and is added to the key and, another one, to the "
            "value. The layer has those of the keys; the paper found the others to add little."
        ),
        because=_TIES,
        exact_because="The covariance is of the query's own templates.",
        written=_shaw,
        example=_text_and_vectors,
        layer={"evidence": "RelativeKeys(1, d, max_distance=w)"},
    ),
    Entry(
        name="stand-alone",
        title="Stand-alone self-attention in images",
        family=_FAMILY,
        paper=Paper(
            "Ramachandran et al.", 2019, "Stand-alone self-attention in vision models", "eqs. (2), (3)"
        ),
        formula="p_ij ∝ exp⟨q_i, k_j + (a_{rows(j−i)}, b_{columns(j−i)})⟩ for j in the k × k pixels around i",
        templates="k_j + (a_{rows(j−i)}, b_{columns(j−i)}), other ones for each query",
        preference="uniform on the k × k pixels around i",
        evidence="q_i",
        meaning=(
            "A pixel asks its neighbours, as a convolution does, with half of the coordinates for how many rows and "
            "half for how many columns away they are. There is no √d. Here fewer pixels are seen at the border."
        ),
        because=_TIES,
        exact_because="The covariance is of the few templates in the window.",
        written=_stand_alone,
        example=_image,
        layer={
            "preference": "GridWindow((2, 3), reach=1)",
            "evidence": "RelativeGridKeys(heads, d, grid=(2, 3), reach=1)",
        },
    ),
)
