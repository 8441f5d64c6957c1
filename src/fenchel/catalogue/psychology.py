"""Attention in psychology: selection (winners, filters, spotlights) and priority (where to look next)."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.catalogue.declaration import Family, cited, heads, queries_or_keys
from fenchel.catalogue.entry import Inferrer, Symmetry, Verdict
from fenchel.catalogue.parts import Parts
from fenchel.closeness import Hard

FAMILY = Family("Psychology")


# What the entries of this family claim, and what they do not.
NOTE = (
    "A filter, a beam or a gain in theories of human attention corresponds to a part of an inference: a preference, "
    "its width, or a factor of it. That a formula matches a theory does not mean that a mind computes it. Findings "
    "about brain areas, rhythms, lesions and split brains say where and when something is computed, not how; they have "
    "no entries."
)


@FAMILY.entry(
    title="Winner-take-all",
    paper=cited("koch1985"),
    formula="o = v_j for the j with the largest salience s_j",
    templates="s_j, one number per location",
    evidence="1: towards higher salience",
    closeness="0 on the support of u, infinite elsewhere: no closeness",
    because=(
        "It is the first-order estimate at temperature 0. The exact solution is the mean of saliences nearest to μ + "
        "z: its weights may not be unique and may not belong to any dual point, so no other estimator is available."
    ),
    example={"salience": (2, 1, 6), "value": (2, 1, 6, 3)},
    symmetries=(Symmetry({"salience": -1, "value": -2}, None),),
    estimators=("first_order",),
    takes_closeness=False,
)
def _winner_take_all(infer: Inferrer, salience: Tensor, value: Tensor) -> Tensor:
    """The most salient location gets all weight.

    It is the limit of softmax, p_j ∝ exp(α s_j), for large α, not softmax itself, as stated in Asakawa's slides of
    2020. Exact inference has a different limit for large α: its mean tends to μ + z if templates can reach it, and one
    location gets all weight only if z points beyond them.
    """
    templates = salience.unsqueeze(-1)
    evidence = torch.ones_like(templates[..., :1, :])
    return infer(Parts(templates=templates, evidence=evidence, values=value, closeness=Hard()))


_TWO_CHANNELS = {
    **heads(queries=4, keys=7, value_dim=3),
    "channel": torch.tensor([0, 1, 0, 1, 1, 0, 1]),
    "attended": torch.tensor([0, 0, 1, 1]),
}


_CHANNELS = queries_or_keys({"attended": -1}, {"channel": -1})


@FAMILY.entry(
    title="Filter",
    paper=cited("broadbent1958"),
    formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) if channel(j) is the one that i attends to, else 0",
    preference="u_ij uniform on the attended channel, 0 on the others",
    exact_because="Mean and covariance under u are those of the selected channel.",
    example=_TWO_CHANNELS,
    symmetries=_CHANNELS,
)
def _filter(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, channel: Tensor, attended: Tensor
) -> Tensor:
    """One channel, such as an ear or a voice, is selected before its content is processed.

    Keys in other channels get no weight, however well they match. It is a mask that depends on a feature of the key
    instead of its position in the sequence.
    """
    passed = attended.unsqueeze(-1) == channel
    return infer(Parts.scaled_dot(query, key, value, passed))


@FAMILY.entry(
    title="Attenuation",
    paper=cited("treisman1964"),
    formula="p_ij ∝ u_ij exp(⟨q_i, k_j⟩/√d),  u_ij ∝ 1 in the attended channel, ε elsewhere,  0 < ε ≪ 1",
    preference="u_ij ∝ 1 in the attended channel, ε in the others",
    exact_because="The threshold changes with the variance of the keys along the query.",
    example={**_TWO_CHANNELS, "leak": 0.05},
    symmetries=_CHANNELS,
)
def _attenuation(
    infer: Inferrer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    channel: Tensor,
    attended: Tensor,
    leak: Tensor,
) -> Tensor:
    """The other channels are unlikely, not impossible: one's own name is still noticed.

    At first order a key in them gets more weight than one in the attended channel if its score is higher by more than
    log(1/ε). The theory's lower threshold for important words is a larger u for them.
    """
    same = attended.unsqueeze(-1) == channel
    log_u = torch.where(same, 0.0, leak.log())
    return infer(Parts.scaled_dot(query, key, value, log_u))


_SCENE = {**heads(queries=3, keys=6, value_dim=3), "places": (6, 2), "centre": (3, 2), "width": 0.8}


@FAMILY.entry(
    name="zoom-lens",
    title="Zoom lens",
    paper=cited("eriksen1986"),
    formula="p_ij ∝ exp(-‖x_j - c_i‖²/2σ_i²) · exp(⟨q_i, k_j⟩/√d)",
    preference="u_ij ∝ exp(-‖x_j - c_i‖²/2σ_i²): a width for each query",
    meaning=(
        "The width of the beam varies by query. Its strength decreases with its width because u is a distribution: on "
        "a dense grid of locations in the plane the weight of its centre decreases as 1/σ²."
    ),
    exact_because=(
        "For a beam on one key all estimators agree; in a wide one the difference depends on the variance of the keys."
    ),
    example=lambda draw: {**draw.inputs(_SCENE), "width": 0.3 + draw(3).abs()},
    symmetries=queries_or_keys({"centre": -2, "width": -1}, {"places": -2}),
)
@FAMILY.entry(
    title="Spotlight",
    paper=cited("posner1980"),
    formula="p_ij ∝ exp(-‖x_j - c_i‖²/2σ²) · exp(⟨q_i, k_j⟩/√d)",
    preference="u_ij ∝ exp(-‖x_j - c_i‖²/2σ²): locations x_j near the cue c_i",
    exact_because="Mean and covariance under u are those within the beam.",
    example=_SCENE,
    symmetries=queries_or_keys({"centre": -2}, {"places": -2}),
)
def _spotlight(
    infer: Inferrer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Tensor,
    centre: Tensor,
    width: Tensor,
) -> Tensor:
    """A cue tells where a target will appear, and locations within the beam get a high preference for any content.

    The Gaussian form is our choice: the theory has no formula.
    """
    squares = (centre.unsqueeze(-2) - places).square().sum(-1)
    log_u = -squares / (2 * width.square().unsqueeze(-1))
    return infer(Parts.scaled_dot(query, key, value, log_u))


_LOOKS = 4


@FAMILY.entry(
    title="Inhibition of return",
    paper=cited("posner1984"),
    formula="p⁽ᵗ⁾_j ∝ u⁽ᵗ⁾_j exp⟨q, k_j⟩,  u⁽ᵗ⁺¹⁾_j ∝ (u⁽ᵗ⁾_j)^κ · (1 - ρ p⁽ᵗ⁾_j),  u⁽¹⁾ uniform",
    templates="k_j",
    preference="u⁽ᵗ⁾: smaller at recently attended locations",
    evidence="q, the same at each step",
    verdict=Verdict.COMPOSITION,
    because="Each step is one inference; its weights enter the preference of the next.",
    exact_because="Exact weights differ, and so does the inhibition of the next step.",
    example={**heads(queries=1, keys=6, dim=3), "inhibition": 0.9, "memory": 0.8},
    symmetries=(Symmetry({"key": -2, "value": -2}, None),),
)
def _inhibition_of_return(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, inhibition: Tensor, memory: Tensor
) -> Tensor:
    """Attended locations have a lower preference for a while, so the same query gives another result at the next step.

    ρ is the strength of the inhibition, κ its memory. The published finding is about reaction times; this rule for u is
    ours.
    """
    log_u = torch.zeros_like(key[..., 0]).unsqueeze(-2)
    seen: list[Tensor] = []
    for _ in range(_LOOKS):
        weights = infer.weights(Parts(templates=key, evidence=query, values=value, log_preference=log_u))
        seen.append(weights @ value)
        log_u = memory * log_u + torch.log1p(-inhibition * weights)
    return torch.cat(seen, -2)


@FAMILY.entry(
    title="Guided search",
    paper=cited("wolfe1994"),
    formula="p_ij ∝ exp(c · mean_{l≠j} ‖f_j - f_l‖₁) · exp⟨w_i, f_j⟩",
    templates="f_j, the features of item j",
    preference="u_j ∝ exp(c · mean_{l≠j} ‖f_j - f_l‖₁): items unlike the others",
    evidence="w_i: weights on features that the target has",
    exact_because="Exact inference starts from the mean under the bottom-up preference.",
    example={"features": (2, 1, 7, 3), "wanted": (2, 1, 2, 3), "value": (2, 1, 7, 2), "contrast": 0.5},
    symmetries=(Symmetry({"features": -2, "value": -2}, None), Symmetry({"wanted": -2})),
)
def _guided_search(
    infer: Inferrer, features: Tensor, wanted: Tensor, value: Tensor, contrast: Tensor
) -> Tensor:
    """Activation is the sum of a bottom-up and a top-down term.

    Wolfe adds noise and visits items in order of activation; p is the probability of being visited first if the noise
    has a Gumbel distribution. He compares items with near neighbours, and by categories; here all other items count and
    features are numbers.
    """
    others = features.shape[-2] - 1
    salience = torch.cdist(features, features, p=1).sum(-1) / others
    log_u = (contrast * salience).unsqueeze(-2)
    return infer(Parts(templates=features, evidence=wanted, values=value, log_preference=log_u))


@FAMILY.entry(
    title="Similarity to targets and among others",
    paper=cited("duncan1989"),
    formula="p_ij ∝ exp(-c · mean_{l≠j} exp(-‖f_j - f_l‖)) · exp⟨t_i, f_j⟩",
    templates="f_j, the features of item j",
    preference="u_j ∝ exp(-c · mean_{l≠j} exp(-‖f_j - f_l‖)): smaller for items that are similar to many others",
    evidence="t_i, the description of the target",
    exact_because="Suppressing groups shifts the mean under u, from which exact inference starts.",
    example={"features": (2, 1, 7, 3), "target": (2, 1, 2, 3), "value": (2, 1, 7, 2), "grouping": 2.0},
    symmetries=(Symmetry({"features": -2, "value": -2}, None), Symmetry({"target": -2})),
)
def _similarity(infer: Inferrer, features: Tensor, target: Tensor, value: Tensor, grouping: Tensor) -> Tensor:
    """Search is hard if distractors resemble the target (evidence) and if they differ from one another (preference).

    Similar distractors are suppressed together. The paper states both laws without a formula for weights; similarity as
    exp(-distance), and its sum, are our choice.
    """
    others = features.shape[-2] - 1
    alike = torch.exp(-torch.cdist(features, features)).sum(-1) - 1
    log_u = -(grouping * alike / others).unsqueeze(-2)
    return infer(Parts(templates=features, evidence=target, values=value, log_preference=log_u))


@FAMILY.entry(
    title="Dynamic routing",
    paper=cited("olshausen1993"),
    formula="p_ij ∝ exp(-‖x_j - (a y_i + b)‖²/2σ²)",
    templates="x_j, positions in the input",
    preference="u_j ∝ exp(-‖x_j‖²/2σ²)",
    evidence="a y_i + b, the position that output i attends to, with α = 1/σ²",
    exact_because=(
        "The preference is a Gaussian around the middle of the input; exact inference adds its mean to the position of "
        "the window."
    ),
    example={
        "places": (1, 1, 9, 2),
        "outputs": (1, 1, 4, 2),
        "value": (1, 1, 9, 3),
        "shift": (2,),
        "zoom": 0.7,
        "width": 0.8,
    },
    symmetries=(Symmetry({"outputs": -2}), Symmetry({"places": -2, "value": -2}, None)),
)
def _routing(
    infer: Inferrer,
    places: Tensor,
    outputs: Tensor,
    value: Tensor,
    shift: Tensor,
    zoom: Tensor,
    width: Tensor,
) -> Tensor:
    """Control neurons route a window with any position b and size a to the same outputs.

    This makes recognition independent of position and size. Both are evidence, shared by all outputs. The paper's
    routing has several stages, each of which doubles the reach; here there is one.
    """
    aimed = zoom * outputs + shift
    alpha = (1 / width.square()).expand(aimed.shape[:-1])
    log_u = -(alpha[..., :1] / 2 * places.square().sum(-1)).unsqueeze(-2)
    return infer(Parts(templates=places, evidence=aimed, values=value, log_preference=log_u, alpha=alpha))


@FAMILY.entry(
    title="Gain field",
    paper=cited("salinas1997"),
    formula="o_i = Σ_j g_j r_ij v_j / Σ_j g_j r_ij,  r_ij = exp⟨q_i, k_j⟩",
    templates="k_j",
    preference="u_j ∝ g_j > 0",
    exact_because=(
        "Odds change by the ratio of gains only at first order: a gain shifts the mean that exact inference starts "
        "from."
    ),
    example=lambda draw: {**draw.inputs(heads(queries=3, keys=6, dim=3)), "gain": 1 + draw(6).square()},
    symmetries=queries_or_keys(with_key={"gain": -1}),
)
def _gain_field(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, gain: Tensor) -> Tensor:
    """Attention multiplies a unit's response by a gain, for any stimulus.

    u multiplies weights in the same way: odds change by the ratio of gains for every query. The paper sums unnormalised
    responses; dividing by their total is our choice.
    """
    return infer(Parts(templates=key, evidence=query, values=value, log_preference=gain.log()))


@FAMILY.entry(
    title="Attention as precision",
    paper=cited("feldman2010"),
    formula="p_ij ∝ exp(α_i ⟨q_i, k_j⟩)",
    templates="k_j",
    evidence="q_i, with a reliability α_i for each query",
    because="It is not the paper's generative model, only the role of precision in it.",
    exact_because=(
        "What the result explains is subtracted from the error; the larger α is, the smaller is the error that is left."
    ),
    example=lambda draw: {
        **draw.inputs(heads(queries=4, keys=6, dim=3)),
        "precision": 0.2 + draw(1, 2, 4).abs(),
    },
    symmetries=queries_or_keys({"precision": -1}),
)
def _precision(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, precision: Tensor) -> Tensor:
    """Attention is the precision assigned to evidence.

    α is the precision of a Gaussian error of the mean, and the exact dual point is a prediction error weighted by it:
    λ* = α(μ + z - h*). At first order, where the prediction is μ, λ = αz: α is only an inverse temperature of the
    scores.
    """
    return infer(Parts(templates=key, evidence=query, values=value, alpha=precision))


@FAMILY.entry(
    title="Top-down against bottom-up",
    paper=cited("itti2001"),
    formula="p_ij ∝ exp(s_j) · exp⟨g_i, k_j⟩",
    templates="k_j",
    preference="u_j ∝ exp(s_j), s the salience: bottom-up",
    evidence="g_i, the goal: top-down",
    exact_because="Exact inference starts from the mean under the salience.",
    example={"goal": (1, 2, 3, 3), "key": (1, 2, 6, 3), "value": (1, 2, 6, 3), "salience": (1, 2, 6)},
    symmetries=(Symmetry({"goal": -2}), Symmetry({"key": -2, "value": -2, "salience": -1}, None)),
)
def _top_down(infer: Inferrer, goal: Tensor, key: Tensor, value: Tensor, salience: Tensor) -> Tensor:
    """Salience is the preference, the goal is evidence.

    As α tends to 0 the result is purely bottom-up; under a uniform u it is purely top-down. Asakawa's slides of 2020
    call self-attention bottom-up; in these terms its query is evidence, although it comes from the input.
    """
    log_u = salience.unsqueeze(-2)
    return infer(Parts(templates=key, evidence=goal, values=value, log_preference=log_u))
