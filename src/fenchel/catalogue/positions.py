"""Positions: in the input, in the preference, in rotations of queries and keys, or in templates of pairs of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.declaration import Draw, Family, cited, heads, log_weights_of
from fenchel.catalogue.entry import Inferrer, Symmetry, Verdict
from fenchel.catalogue.parts import Parts, RelativeParts
from fenchel.nn import sinusoids
from fenchel.nn.calls import combined
from fenchel.nn.evidence import (
    AbstractPositionalEvidence,
    RelativeGridKeys,
    RelativeKeys,
    Rotary,
    TransformerXL,
)
from fenchel.nn.preference import ALiBi, Causal, GridPosition, GridWindow, RelativePosition, Window

FAMILY = Family("Scores and positions")


def _tokens(draw: Draw) -> dict[str, Any]:
    return {"x": draw(1, 5, 6), "project": draw(3, 2, 6, 3) / 2}


def _projected(x: Tensor, project: Tensor) -> Tensor:
    """Projections of all heads, such as queries, keys and values, (3, B, H, n, d), by maps (3, H, width, d)."""
    return x.unsqueeze(1) @ project.unsqueeze(1)


@FAMILY.entry(
    title="Learned absolute position embeddings",
    paper=cited("devlin2019", "section 3"),
    formula="p_ij ∝ exp(⟨Q(x_i + a_i), K(x_j + a_j)⟩/√d)",
    templates="K(x_j + a_j)/√d, a_j a learned vector of position j",
    evidence="Q(x_i + a_i)",
    values="V(x_j + a_j)",
    exact_because="Positions change the mean and the spread of the templates, not only their scores.",
    example=lambda draw: {**_tokens(draw), "places": draw(5, 6)},
    symmetries=(Symmetry({"x": -2, "places": -2}),),
)
def _learned_absolute(infer: Inferrer, x: Tensor, places: Tensor, project: Tensor) -> Tensor:
    """The position is part of the token: it enters the query, the template and the value.

    Attention itself is independent of order: permuting tokens together with their positions permutes the outputs. The
    model adds positions once, before its first layer, and normalises the sums, which is omitted here.
    """
    query, key, value = _projected(x + places, project)
    return infer(Parts.scaled_dot(query, key, value))


@FAMILY.entry(
    title="Sinusoidal position encodings",
    paper=cited("vaswani2017", "section 3.5"),
    formula=(
        "p_ij ∝ exp(⟨Q(x_i + s_i), K(x_j + s_j)⟩/√d),  s_i = (sin ω_c i, cos ω_c i)_c,  ω_c = 10000^{−2c/w}\n"
        "√d times the score is a sum of four: x_iᵀ M x_j + x_iᵀ M s_j + s_iᵀ M x_j + s_iᵀ M s_j,  M = QᵀK"
    ),
    templates="K(x_j + s_j)/√d",
    evidence="Q(x_i + s_i)",
    values="V(x_j + s_j)",
    because=(
        "The last of the four terms depends on no token and could be a preference; the published model has all four in "
        "the query."
    ),
    exact_because="Positions change the mean and the spread of the templates, not only their scores.",
    example=_tokens,
)
def _sinusoidal(infer: Inferrer, x: Tensor, project: Tensor) -> Tensor:
    """As learned positions, with codes for which a shift is a rotation.

    s_{i+r} is s_i with its pairs rotated by angles proportional to r, so a linear map can attend at a fixed distance.
    The slides omit the exponent and print 10000·2i/d.
    """
    places = sinusoids(torch.arange(x.shape[1], dtype=x.dtype, device=x.device), x.shape[2])
    return _learned_absolute(infer, x, places, project)


_HEADS = heads(value_dim=3)


@FAMILY.entry(
    title="T5's relative position",
    paper=cited("raffel2020", "section 2.1"),
    formula="p_ij ∝ exp(b_{β(j−i)}) · exp⟨q_i, k_j⟩",
    templates="k_j",
    preference="u_ij ∝ exp(b_{β(j−i)}), β a bucket of distances and b a number of each head and bucket",
    exact_because="The preference differs by query, and so do mean and covariance under it.",
    example=lambda draw: {
        **draw.inputs(_HEADS),
        "network": draw.module(RelativePosition(heads=2, buckets=8, max_distance=6)),
    },
    layer={"preference": "RelativePosition(heads)", "evidence": "ScaledDot(scale=1.0)"},
)
def _t5(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, network: RelativePosition) -> Tensor:
    """The distance of a key determines how likely it is, independent of the query's content.

    There is no √d: the initialisation of the model absorbs it. A decoder multiplies by the causal mask.
    """
    belief = log_weights_of(network, query, key)
    return infer(Parts(templates=key, evidence=query, values=value, log_preference=belief))


@FAMILY.entry(
    title="Attention with linear biases (ALiBi)",
    paper=cited("press2022", "section 3"),
    formula="p_ij ∝ exp(−s_h (i − j)) · exp(⟨q_i, k_j⟩/√d) for j ≤ i,  s_h = 2^{−8h/H}",
    preference="u_ij ∝ exp(−s_h (i − j)) for j ≤ i, else 0",
    exact_because=(
        "A steep head has all preference on the last key, where exact and first order agree; for a flat one the "
        "covariance is that of all earlier keys."
    ),
    example=_HEADS,
    layer={"preference": "Causal() * ALiBi(heads)", "evidence": "ScaledDot()"},
)
def _alibi(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The last key is the most likely, and each earlier one is less likely by a factor that depends on the head.

    This is a geometric preference, the same for texts of any length. Terms that depend only on i have no effect, so
    −s_h (i − j) and s_h j are the same preference. If H is not a power of 2, slopes are those of the published code.
    """
    slopes = Causal() * ALiBi(query.shape[1])
    return infer(Parts.scaled_dot(query, key, value, log_weights_of(slopes, query, key)))


@FAMILY.entry(
    title="Rotary position embedding (RoPE)",
    paper=cited("su2021", "eqs. (14)-(16)"),
    formula="p_ij ∝ exp(⟨R_i q_i, R_j k_j⟩/√d) = exp(⟨q_i, R_{j−i} k_j⟩/√d)",
    templates="R_j k_j/√d, where R_j rotates pairs of coordinates by angles proportional to j",
    evidence="R_i q_i",
    because=(
        "Shifting all positions rotates the whole problem and changes no norm: exact inference also depends only on "
        "distances."
    ),
    exact_because="Equal keys at different positions are different templates, and contribute to the covariance.",
    example=_HEADS,
    layer={"evidence": "Rotary(d)"},
)
def _rotary(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A template is rotated by its own position, so all queries share the templates.

    Scores depend only on distances.
    """
    evidence, templates, scale = Rotary(query.shape[-1])(query, key)
    return infer(Parts(templates=templates * scale, evidence=evidence, values=value))


@FAMILY.entry(
    title="Causal attention",
    paper=cited("vaswani2017", "section 3.2.3"),
    formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) for j ≤ i, else 0",
    preference="uniform on j ≤ i",
    exact_because="The first query has only one key, so all estimators agree; later queries have more.",
    example=_HEADS,
    layer={"preference": "Causal()", "evidence": "ScaledDot()"},
)
def _causal(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Later tokens cannot get weight.

    A preference of 0 gives a weight of 0, for every estimator and every closeness here except transport. The number of
    visible keys reveals the position of the query; a single layer does not depend on their order.
    """
    return infer(Parts.scaled_dot(query, key, value, log_weights_of(Causal(), query, key)))


@FAMILY.entry(
    title="Sliding window (Longformer)",
    paper=cited("beltagy2020", "section 3.1"),
    formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) for |j − i| ≤ w/2, else 0",
    preference="uniform on w + 1 positions around i",
    exact_because="Mean and covariance are those of the few templates in the window.",
    example={**_HEADS, "width": 2},
    layer={"preference": "Window(w // 2, w // 2)", "evidence": "ScaledDot()"},
)
def _sliding_window(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    """Only neighbours can get weight; several layers reach farther.

    The paper's dilated window is the same with gaps; its global tokens are a mask in which some queries and keys are
    never masked, with separate projections.
    """
    near = log_weights_of(Window(width // 2, width // 2), query, key)
    return infer(Parts.scaled_dot(query, key, value, near))


_TIES = (
    "The position term is linear in the query and is therefore read as evidence; like any score it could be a "
    "preference instead, for which all estimators agree. The template as key plus position vector, as in Shaw et al., "
    "is also a choice: longer templates shared by all queries can have the same scores, and give another exact problem."
)


def _text(draw: Draw) -> dict[str, Any]:
    return {"x": draw(1, 5, 6), "project": draw(3, 2, 6, 4) / 2}


def _text_and_memory(draw: Draw) -> dict[str, Any]:
    return {
        **_text(draw),
        "memory": draw(1, 2, 6),
        "network": draw.module(TransformerXL(heads=2, dim=4, width=6)),
    }


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


@FAMILY.entry(
    title="Transformer-XL",
    paper=cited("dai2019", "section 3.3"),
    formula=(
        "p_ij ∝ exp((⟨q_i, k_j⟩ + ⟨q_i, W R_{i−j}⟩ + ⟨u, k_j⟩ + ⟨v, W R_{i−j}⟩)/√d) for j ≤ i\n"
        "R the sinusoidal code of a distance; keys include those of the previous segment"
    ),
    templates="(k_j + W R_{i−j})/√d, different for each query",
    preference="u_ij ∝ exp((⟨u, k_j⟩ + ⟨v, W R_{i−j}⟩)/√d) for j ≤ i",
    because=_TIES,
    exact_because=(
        "Exact inference uses mean and covariance under u of the templates of each query; the preference is unchanged."
    ),
    example=_text_and_memory,
    layer={"preference": "Causal()", "evidence": "TransformerXL(heads, d, width)"},
)
def _transformer_xl(
    infer: Inferrer, x: Tensor, memory: Tensor, project: Tensor, network: TransformerXL
) -> Tensor:
    """Two of the four terms do not depend on the query: an importance of each key and one of each distance.

    They are the preference; the other two are evidence about the content of a key and about its distance.
    """
    seen = torch.cat([memory, x], 1)
    (query,), (key, value) = _projected(x, project[:1]), _projected(seen, project[1:])
    offset = memory.shape[1]
    past = log_weights_of(Causal(), query, key, query_offset=offset)
    return infer(_asked(network, query, key, value, past, offset=offset))


@FAMILY.entry(
    title="Two-stream attention (XLNet)",
    paper=cited("yang2019", "section 2.3"),
    formula=(
        "h_i attends to keys of h with o_j ≤ o_i;  g_i to keys of h with o_j < o_i,  o the factorisation order\n"
        "scores as Transformer-XL's"
    ),
    templates="(K h_j + W R_{i−j})/√d, different for each query",
    preference="u_ij ∝ exp((⟨u, k_j⟩ + ⟨v, W R_{i−j}⟩)/√d) where o_j ≤ o_i; where o_j < o_i",
    evidence="Q h_i; Q g_i",
    values="V h_j",
    verdict=Verdict.COMPOSITION,
    because=(
        "Two parallel inferences with shared templates. With the order of the text the content stream is "
        "Transformer-XL's causal attention."
    ),
    exact_because="Each stream has the covariance of its visible templates.",
    example=lambda draw: {
        **_text_and_memory(draw),
        "asking": draw(1, 5, 6),
        "order": torch.randperm(5, generator=draw.generator),
    },
)
def _xlnet(
    infer: Inferrer,
    x: Tensor,
    asking: Tensor,
    memory: Tensor,
    order: Tensor,
    project: Tensor,
    network: TransformerXL,
) -> Tensor:
    """A text is predicted in any order.

    The content stream contains the token at its position, the query stream only the position: it attends to the same
    templates except its own. Segments, which the model encodes similarly, are omitted.
    """
    seen, offset = torch.cat([memory, x], 1), memory.shape[1]
    key, value = _projected(seen, project[1:])
    remembered = torch.ones(x.shape[1], offset, dtype=torch.bool, device=x.device)
    streams = []
    for stream, known in ((x, order <= order.unsqueeze(-1)), (asking, order < order.unsqueeze(-1))):
        (query,) = _projected(stream, project[:1])
        belief = torch.cat([remembered, known], 1)
        streams.append(infer(_asked(network, query, key, value, belief, offset=offset)))
    return torch.stack(streams)


@FAMILY.entry(
    title="Relative position representations",
    paper=cited("shaw2018", "eqs. (3), (4)"),
    formula=(
        "o_i = Σ_j p_ij (v_j + b_{clip(j−i)}),  p_ij ∝ exp(⟨q_i, k_j + a_{clip(j−i)}⟩/√d)\n"
        "clip(r) = max(−K, min(K, r))"
    ),
    templates="(k_j + a_{clip(j−i)})/√d, different for each query",
    values="v_j + b_{clip(j−i)}",
    because=_TIES,
    exact_because="The covariance is of the query's own templates.",
    example=lambda draw: {
        **_text(draw),
        "network": draw.module(RelativeKeys(heads=1, dim=4, max_distance=2)),
        "value_vectors": draw(5, 4),
    },
    layer={"evidence": "RelativeKeys(1, d, max_distance=w)"},
)
def _shaw(
    infer: Inferrer, x: Tensor, project: Tensor, network: RelativeKeys, value_vectors: Tensor
) -> Tensor:
    """Each distance up to K has one learned vector added to the key and another added to the value.

    The layer has only those of keys; the paper found that those of values add little.
    """
    query, key, value = _projected(x, project)
    return infer(_asked(network, query, key, value, relative_values=value_vectors[None, None]))


@FAMILY.entry(
    title="Stand-alone self-attention in images",
    paper=cited("ramachandran2019", "eqs. (2), (3)"),
    formula="p_ij ∝ exp⟨q_i, k_j + (a_{rows(j−i)}, b_{columns(j−i)})⟩ for j in the k × k pixels around i",
    templates="k_j + (a_{rows(j−i)}, b_{columns(j−i)}), different for each query",
    preference="uniform on the k × k pixels around i",
    because=_TIES,
    exact_because="The covariance is of the few templates in the window.",
    example=lambda draw: {
        "x": draw(1, 8, 6),
        "project": draw(3, 2, 6, 4) / 2,
        "network": draw.module(RelativeGridKeys(2, 4, grid=(2, 4), reach=1)),
    },
    layer={
        "preference": "GridWindow((2, 3), reach=1)",
        "evidence": "RelativeGridKeys(heads, d, grid=(2, 3), reach=1)",
    },
)
def _stand_alone(infer: Inferrer, x: Tensor, project: Tensor, network: RelativeGridKeys) -> Tensor:
    """A pixel attends to its neighbours, as in a convolution.

    Half of the coordinates encode the offset in rows, the other half in columns. There is no √d. Here windows have
    fewer pixels at the border.
    """
    query, key, value = _projected(x, project)
    near = log_weights_of(GridWindow(network.grid, network.reach), query, key)
    return infer(_asked(network, query, key, value, near))


def _windows(image: Tensor, side: int) -> Tensor:
    """(B, rows, columns, width) as (B·windows, side², width)."""
    cut = image.unflatten(1, (-1, side)).unflatten(3, (-1, side))
    return cut.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def _together(rows: int, columns: int, side: int, shift: int, image: Tensor) -> Tensor:
    """Whether pixels of a window were together before the image was rolled, (B·windows, 1, side², side²)."""
    at = [torch.arange(size, device=image.device).roll(-shift) < shift for size in (rows, columns)]
    rolled = 2 * at[0].long().unsqueeze(-1) + at[1].long()
    region = _windows(rolled[None, :, :, None].expand(len(image), -1, -1, 1), side).squeeze(-1)
    return (region.unsqueeze(-1) == region.unsqueeze(-2)).unsqueeze(1)


def _joined_windows(windows: Tensor, side: int, rows: int, columns: int) -> Tensor:
    """The inverse of :func:`_windows`."""
    cut = windows.unflatten(0, (-1, rows // side, columns // side)).unflatten(3, (side, side))
    return cut.transpose(2, 3).flatten(3, 4).flatten(1, 2)


@FAMILY.entry(
    title="Shifted windows (Swin)",
    paper=cited("liu2021", "section 3.2 and eq. (4)"),
    formula="p_ij ∝ exp(B_h[offset of i from j]) · exp(⟨q_i, k_j⟩/√d) for i and j in one window, else 0",
    preference="u_ij ∝ exp(B_h[offset of i from j]) in the window of i, else 0",
    exact_because="Mean and covariance are those of the pixels of a window, under the learned preference.",
    example=lambda draw: {
        "image": draw(1, 4, 4, 4),
        "project": draw(3, 2, 4, 2),
        "network": draw.module(GridPosition(heads=2, grid=(2, 2))),
        "shift": 1,
    },
    layer={"preference": "GridPosition(heads, (2, 3))", "evidence": "ScaledDot()"},
)
def _swin(infer: Inferrer, image: Tensor, project: Tensor, network: GridPosition, shift: int) -> Tensor:
    """An image is cut into windows, shifted by half a window in every other layer.

    A pixel attends only to its window, with a learned preference for each offset. It is computed by rolling the image
    and masking pixels that the roll made neighbours.
    """
    side = network.grid[0]
    rows, columns = image.shape[1:3]
    windows = _windows(image.roll((-shift, -shift), (1, 2)), side)
    query, key, value = windows.unsqueeze(1) @ project.unsqueeze(1)
    belief = combined([log_weights_of(network, query, key), _together(rows, columns, side, shift, image)])
    result = infer(Parts.scaled_dot(query, key, value, belief))
    joined = result.transpose(1, 2).flatten(2)
    return _joined_windows(joined, side, rows, columns).roll((shift, shift), (1, 2))
