"""Attention of a decoder to its source: by location, by a learned form, by content, in a window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.catalogue.declaration import QUERIES_OR_KEYS, Draw, Family, cited, heads, log_weights_of
from fenchel.catalogue.entry import Inferrer, Symmetry, Verdict
from fenchel.catalogue.parts import Parts
from fenchel.nn.evidence import General
from fenchel.nn.preference import Location, Window

FAMILY = Family("Scores and positions")


@FAMILY.entry(
    title="Location-based attention",
    paper=cited("luong2015", "eq. (8)"),
    formula="c_i = Σ_j p_ij h_j,  p_ij ∝ exp⟨w_j, s_i⟩",
    templates="h_j, without effect",
    preference="u_ij ∝ exp⟨w_j, s_i⟩, w_j a learned vector of position j",
    evidence="0",
    values="h_j",
    because=(
        "The score does not depend on the content at a position and is therefore read as preference. As evidence s_i "
        "on templates w_j it would have the same weights at first order, and other exact ones."
    ),
    exact_differs=False,
    exact_because="With z = 0 the result is u itself.",
    example=lambda draw: {
        "state": draw(2, 3, 4),
        "annotations": draw(2, 6, 3),
        "network": draw.module(Location(heads=1, query_dim=4, max_keys=8)),
    },
    symmetries=(Symmetry({"state": -2}),),
    layer={
        "preference": "Location(heads, query_dim=width, max_keys=n)",
        "evidence": "NoEvidence()",
    },
)
def _location(infer: Inferrer, state: Tensor, annotations: Tensor, network: Location) -> Tensor:
    """The state of the decoder determines which positions to attend to, independent of their content.

    The slides on which this catalogue is based print one formula for the additive, the location and the general score;
    in the paper they differ.
    """
    query, values = state.unsqueeze(1), annotations.unsqueeze(1)
    belief = log_weights_of(network, query, values, query_inputs=state)
    nothing = values.new_zeros(*query.shape[:-1], values.shape[-1])
    return infer(Parts(templates=values, evidence=nothing, values=values, log_preference=belief))


def _states_and_a_form(draw: Draw) -> dict[str, Any]:
    tokens = draw.inputs(heads(queries=4, keys=6))
    network = General(heads=2, query_dim=4, key_dim=3, scale=1.0)
    return {**tokens, "key": tokens["key"][..., :3].clone(), "network": draw.module(network)}


@FAMILY.entry(
    title="General (bilinear) attention",
    paper=cited("luong2015", "section 3.1, general"),
    formula="p_ij ∝ exp(q_iᵀ W k_j)",
    templates="k_j",
    evidence="Wᵀ q_i",
    exact_because=(
        "W could also be applied to the keys: the scores are the same, but the exact problems differ, since the "
        "templates do."
    ),
    example=_states_and_a_form,
    symmetries=QUERIES_OR_KEYS,
    layer={"evidence": "General(heads, d, scale=1.0)"},
)
def _general(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, network: General) -> Tensor:
    """Queries and keys are in different spaces, and W maps between them.

    The evidence about the mean of the keys is Wᵀq. A bias, which the slides add, is the same for all keys and cancels
    in the softmax.
    """
    evidence, templates, scale = network(query, key)
    return infer(Parts(templates=templates * scale, evidence=evidence, values=value))


def _a_memory(draw: Draw) -> dict[str, Any]:
    return {"query": draw(1, 2, 3, 4), "memory": draw(1, 2, 6, 4), "strength": draw(1, 2, 3).exp()}


def _addressed(query: Tensor, memory: Tensor, strength: Tensor) -> Parts:
    directions = nn.functional.normalize(memory, dim=-1)
    evidence = strength.unsqueeze(-1) * nn.functional.normalize(query, dim=-1)
    return Parts(templates=directions, evidence=evidence, values=memory)


@FAMILY.entry(
    title="Content addressing",
    paper=cited("graves2014", "eqs. (5), (6)"),
    formula="r_i = Σ_j p_ij M_j,  p_ij ∝ exp(β_i cos(k_i, M_j))",
    templates="M_j/‖M_j‖",
    evidence="β_i k_i/‖k_i‖",
    values="M_j",
    exact_because=(
        "Exact inference shifts the mean of the templates less. They have norm 1, so neither shifts it by more than 2, "
        "for evidence of any strength."
    ),
    example=_a_memory,
    symmetries=(Symmetry({"query": -2, "strength": -1}), Symmetry({"memory": -2}, None)),
    layer={"evidence": "Content(heads)"},
)
def _content(infer: Inferrer, query: Tensor, memory: Tensor, strength: Tensor) -> Tensor:
    """A controller emits a key and a key strength β > 0, which is the norm of the evidence.

    It could be the reliability α instead: the same scores, but another exact problem.
    """
    return infer(_addressed(query, memory, strength))


@FAMILY.entry(
    title="Addressing of a neural Turing machine",
    paper=cited("graves2014", "eqs. (5)-(9) and (2)"),
    formula=(
        "c = content addressing,  g_i c_i + (1 − g_i) w_i of the previous step, circularly shifted by s_i: w̃_i\n"
        "r_i = Σ_j p_ij M_j,  p_ij ∝ w̃_{ij}^{γ_i}"
    ),
    templates="M_j/‖M_j‖; M_j, without effect",
    preference="uniform; u_ij ∝ w̃_{ij}^{γ_i}",
    evidence="β_i k_i/‖k_i‖; 0",
    values="M_j",
    verdict=Verdict.COMPOSITION,
    because=(
        "One inference by content, whose weights are mixed and shifted, and one without evidence, with the result as "
        "preference."
    ),
    exact_because="The first inference differs; the second has no evidence and is the same.",
    example=lambda draw: {
        **_a_memory(draw),
        "before": draw(1, 2, 3, 6).softmax(-1),
        "gate": draw(1, 2, 3).sigmoid(),
        "shift": draw(1, 2, 3, 3).softmax(-1),
        "sharpness": 1 + draw(1, 2, 3).exp(),
    },
)
def _neural_turing_machine(
    infer: Inferrer,
    query: Tensor,
    memory: Tensor,
    strength: Tensor,
    before: Tensor,
    gate: Tensor,
    shift: Tensor,
    sharpness: Tensor,
) -> Tensor:
    """The weights by content are mixed with the previous weights, and shifted along the tape.

    Sharpening raises the preference to a power γ ≥ 1.
    """
    result = infer.weights(_addressed(query, memory, strength))
    share = gate.unsqueeze(-1)
    kept = share * result + (1 - share) * before
    moved = torch.stack([shift[..., s, None] * kept.roll(s - 1, -1) for s in range(3)]).sum(0)
    belief = sharpness.unsqueeze(-1) * moved.log()
    nothing = torch.zeros_like(query)
    return infer(Parts(templates=memory, evidence=nothing, values=memory, log_preference=belief))


_STATES_AND_REACH = {**heads(queries=5, keys=7, value_dim=3, count=1), "reach": 2}


@FAMILY.entry(
    title="Local attention, monotonic (local-m)",
    paper=cited("luong2015", "section 3.2, local-m"),
    formula="p_ij ∝ exp⟨q_i, k_j⟩ where |j − i| ≤ D, else 0",
    templates="k_j",
    preference="uniform on the window of 2D + 1 positions around i",
    exact_because="Mean and covariance are those of the few templates in the window.",
    example=_STATES_AND_REACH,
    layer={"preference": "Window(D, D)", "evidence": "ScaledDot(scale=1.0)"},
)
def _local_m(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, reach: int) -> Tensor:
    """Source and target are roughly aligned: word i of one corresponds to words near i of the other."""
    near = log_weights_of(Window(reach, reach), query, key, query_offset=0)
    return infer(Parts(templates=key, evidence=query, values=value, log_preference=near))


@FAMILY.entry(
    title="Local attention, predictive (local-p)",
    paper=cited("luong2015", "eqs. (9), (10)"),
    formula=(
        "c_i = S sigmoid(v · tanh(W q_i));  a_ij ∝ exp⟨q_i, k_j⟩ where |j − c_i| ≤ D\n"
        "o_i = Σ_j a_ij exp(−(j − c_i)²/2σ²) v_j,  σ = D/2"
    ),
    templates="k_j",
    preference="uniform on the window; the window times a Gaussian around c_i",
    verdict=Verdict.COMPOSITION,
    because=(
        "The paper multiplies by the Gaussian after the softmax without normalising again: its output is the mean "
        "under this u, times the share of the original weights that the Gaussian leaves. The layer normalises, and has "
        "no hard window."
    ),
    exact_because="Both the mean and the share differ.",
    example={**_STATES_AND_REACH, "hidden": (4, 4), "direction": (4,)},
    symmetries=(Symmetry({"query": -2}),),
    layer={
        "preference": "GaussianWindow(heads, D / 2, predict_location=True, query_dim=width)",
        "evidence": "ScaledDot(scale=1.0)",
    },
)
def _local_p(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, direction: Tensor, reach: int
) -> Tensor:
    """The query predicts a location, and the preference decreases with the distance from it.

    With weights that sum to 1 this is one inference under u = window × Gaussian.
    """
    places = torch.arange(key.shape[2], dtype=query.dtype, device=query.device)
    centre = key.shape[2] * torch.sigmoid(torch.tanh(query @ hidden) @ direction).unsqueeze(-1)
    distance = places - centre
    near, bell = distance.abs() <= reach, -2 * (distance / reach).square()
    aligned = infer.weights(Parts(templates=key, evidence=query, values=value, log_preference=near))
    share = (aligned * bell.exp()).sum(-1, keepdim=True)
    belief = bell.masked_fill(~near, -torch.inf)
    return share * infer(Parts(templates=key, evidence=query, values=value, log_preference=belief))
