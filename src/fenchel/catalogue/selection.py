"""What the psychology of attention calls selection: winners, filters, attenuation, spotlights and zoom lenses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import drawn, heads
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.closeness import Hard

__all__ = ["ENTRIES", "NOTE"]

_FAMILY = "Mind"

NOTE = (
    "What theories of human attention call a filter, a beam or a gain is a part of an inference here: a preference, "
    "its width, a factor of it. That a formula fits such a theory does not say that a mind computes it. Brain areas, "
    "rhythms, and what lesions and split brains show, are biology: where and when something is done, and what is "
    "lost with a part. They are no mechanisms, and have no entry."
)
"""What the entries of this family are, and what they are not."""


def _winner(infer: Inferrer, salience: Tensor, value: Tensor) -> Tensor:
    templates = salience.unsqueeze(-1)
    evidence = torch.ones_like(templates[..., :1, :])
    return infer(Parts(templates=templates, evidence=evidence, values=value, closeness=Hard()))


def _map_of_places(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {"salience": drawn(generator, dtype, 2, 1, 6), "value": drawn(generator, dtype, 2, 1, 6, 3)}


def _filtered(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, channel: Tensor, attended: Tensor
) -> Tensor:
    passed = attended.unsqueeze(-1) == channel
    return infer(Parts.scaled_dot(query, key, value, passed))


def _attenuated(
    infer: Inferrer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    channel: Tensor,
    attended: Tensor,
    leak: Tensor,
) -> Tensor:
    same = attended.unsqueeze(-1) == channel
    log_u = torch.where(same, 0.0, leak.log())
    return infer(Parts.scaled_dot(query, key, value, log_u))


def _channels(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=4, keys=7, dim=4, value_dim=3)
    return {
        "query": query,
        "key": key,
        "value": value,
        "channel": torch.tensor([0, 1, 0, 1, 1, 0, 1]),
        "attended": torch.tensor([0, 0, 1, 1]),
    }


def _channels_and_leak(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_channels(generator, dtype), "leak": torch.tensor(0.05, dtype=dtype)}


def _beam(
    infer: Inferrer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Tensor,
    centre: Tensor,
    width: Tensor,
) -> Tensor:
    squares = (centre.unsqueeze(-2) - places).square().sum(-1)
    log_u = -squares / (2 * width.square().unsqueeze(-1))
    return infer(Parts.scaled_dot(query, key, value, log_u))


def _scene(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=3, keys=6, dim=4, value_dim=3)
    return {
        "query": query,
        "key": key,
        "value": value,
        "places": drawn(generator, dtype, 6, 2),
        "centre": drawn(generator, dtype, 3, 2),
        "width": torch.tensor(0.8, dtype=dtype),
    }


def _scene_and_widths(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_scene(generator, dtype), "width": 0.3 + drawn(generator, dtype, 3).abs()}


_CHANNELS = (
    Symmetry({"query": -2, "attended": -1}),
    Symmetry({"key": -2, "value": -2, "channel": -1}, None),
)

ENTRIES = (
    Entry(
        name="winner-take-all",
        title="Winner-take-all",
        family=_FAMILY,
        paper=Paper(
            "Koch and Ullman",
            1985,
            "Shifts in selective visual attention: towards the underlying neural circuitry",
        ),
        formula="o = v_j for the j with the largest salience s_j",
        templates="s_j, one number a place",
        preference="uniform",
        evidence="1: towards more salience",
        closeness="0 on the support of u, infinite elsewhere: no closeness",
        meaning=(
            "The most salient place gets everything. It is the limit of softmax, p_j ∝ exp(α s_j), as α grows, and not "
            "softmax itself, as Asakawa's slides of 2020 have it. Exact inference has another limit as α grows: its "
            "mean goes to μ + z wherever templates can reach that, and the winner takes all only where z points beyond "
            "them."
        ),
        because=(
            "It is the first-order answer at temperature 0. The exact problem is the point nearest to μ + z among all "
            "means of saliences: its weights need not be unique, nor those of any dual point, so that no other "
            "estimator here finds them."
        ),
        written=_winner,
        example=_map_of_places,
        symmetries=(Symmetry({"salience": -1, "value": -2}, None),),
        estimators=("first_order",),
        takes_closeness=False,
    ),
    Entry(
        name="filter",
        title="Filter",
        family=_FAMILY,
        paper=Paper("Broadbent", 1958, "Perception and communication"),
        formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) where channel(j) is the one that i attends to, 0 elsewhere",
        templates="k_j/√d",
        preference="u_ij uniform on the attended channel, 0 on the others",
        evidence="q_i",
        meaning=(
            "One channel, such as an ear or a voice, passes, chosen before what is said is understood; nothing in the "
            "others can matter, however well it fits. It is a mask, chosen by a mark of the key, not by its place in "
            "the sequence."
        ),
        exact_because="Mean and covariance under u are those of the channel that passes.",
        written=_filtered,
        example=_channels,
        symmetries=_CHANNELS,
    ),
    Entry(
        name="attenuation",
        title="Attenuation",
        family=_FAMILY,
        paper=Paper("Treisman", 1964, "Selective attention in man"),
        formula="p_ij ∝ u_ij exp(⟨q_i, k_j⟩/√d),  u_ij ∝ 1 in the attended channel, ε elsewhere,  0 < ε ≪ 1",
        templates="k_j/√d",
        preference="u_ij ∝ 1 in the attended channel, ε in the others",
        evidence="q_i",
        meaning=(
            "The other channels are unlikely, not impossible: one's own name breaks through. At first order a key "
            "there overtakes one in the attended channel where its score is higher by more than log(1/ε). A lower "
            "threshold for important words, which the theory adds, is a larger u for them."
        ),
        exact_because="The threshold is moved by how much the keys vary along the query.",
        written=_attenuated,
        example=_channels_and_leak,
        symmetries=_CHANNELS,
    ),
    Entry(
        name="spotlight",
        title="Spotlight",
        family=_FAMILY,
        paper=Paper("Posner et al.", 1980, "Attention and the detection of signals"),
        formula="p_ij ∝ exp(-‖x_j - c_i‖²/2σ²) · exp(⟨q_i, k_j⟩/√d)",
        templates="k_j/√d",
        preference="u_ij ∝ exp(-‖x_j - c_i‖²/2σ²): places x_j near the cue c_i",
        evidence="q_i",
        meaning=(
            "A cue says where something will be before it is there, and what is within the beam is believed in, at "
            "whatever it turns out to be. That the beam is Gaussian is a choice of ours: the metaphor has no formula."
        ),
        exact_because="Mean and covariance under u are those within the beam.",
        written=_beam,
        example=_scene,
        symmetries=(
            Symmetry({"query": -2, "centre": -2}),
            Symmetry({"key": -2, "value": -2, "places": -2}, None),
        ),
    ),
    Entry(
        name="zoom-lens",
        title="Zoom lens",
        family=_FAMILY,
        paper=Paper(
            "Eriksen and St. James",
            1986,
            "Visual attention within and around the field of focal attention: a zoom lens model",
        ),
        formula="p_ij ∝ exp(-‖x_j - c_i‖²/2σ_i²) · exp(⟨q_i, k_j⟩/√d)",
        templates="k_j/√d",
        preference="u_ij ∝ exp(-‖x_j - c_i‖²/2σ_i²): a width for each query",
        evidence="q_i",
        meaning=(
            "The beam is wide or narrow by need. That power falls as the field widens follows from u being a "
            "distribution: on a dense grid of places in the plane the share of its centre falls as 1/σ²."
        ),
        exact_because=(
            "A beam on one key leaves nothing to correct; in a wide one the keys vary, and what they vary is corrected."
        ),
        written=_beam,
        example=_scene_and_widths,
        symmetries=(
            Symmetry({"query": -2, "centre": -2, "width": -1}),
            Symmetry({"key": -2, "value": -2, "places": -2}, None),
        ),
    ),
)
