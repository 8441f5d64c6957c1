"""Hashing, and gates: a mask between 0 and 1 is the mean of a binary variable whose preference is even."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from fenchel import functional
from fenchel.catalogue.entry import Entry, Inferrer, Paper, Symmetry, Verdict
from fenchel.catalogue.parts import CoinParts, Parts
from fenchel.catalogue.random_inputs import drawn

_REFORMER = "Reformer: the efficient transformer"


def _reformer(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk, same_bucket=True, count_meetings=False)


def _reformer_as_run(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk)


def _hashed(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, **options: Any) -> Tensor:
    buckets = functional.hash_buckets(query, rotations)
    log_u = functional.hashing_log_preference(buckets, causal=True, dtype=query.dtype, **options)
    templates = normalize(query, dim=-1)
    return infer(Parts(templates=templates, evidence=query, values=value, log_preference=log_u))


def _hashing_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "query": drawn(generator, dtype, 1, 2, 8, 4),
        "value": drawn(generator, dtype, 1, 2, 8, 3),
        "rotations": drawn(generator, dtype, 2, 4, 2, 2),
        "chunk": 2,
    }


_HASHING_MEANING = (
    "Before looking, a token believes in the tokens that fell into its chunk, or the one before, when all were "
    "sorted by hash: there is where vectors in its direction are likely to be. Keys are the queries with length 1. A "
    "token believes in itself only where it meets nobody else, since nothing is more like it."
)

_FAMILY = "Vision, hashing and gates"


def coins(infer: Inferrer, evidence: Tensor, odds: Tensor | None = None, tails: float = 0.0) -> Tensor:
    r"""Means of independent coins, one inference each: at first order :math:`\sigma(\operatorname{logit}u + \alpha z)`.

    Args:
        infer: Of the mechanism.
        evidence: z of each coin, (..., units).
        odds: logit u of each unit, how likely heads are before looking, (units,); None is fair coins.
        tails: What a coin shows that does not show 1: 0, or -1, whose mean is tanh where that of 0 is σ.
    """
    units = evidence.shape[-1]
    sides = evidence.new_tensor([tails, 1.0]).view(1, 1, 2, 1).expand(-1, units, -1, -1)
    log_u = None
    if odds is not None:
        log_u = torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1).view(1, units, 1, 2)
    asked = evidence.reshape(-1, units).mT.unsqueeze(-1).unsqueeze(0)
    result = infer(CoinParts(templates=sides, evidence=asked, values=sides, log_preference=log_u))
    return result.squeeze(0).squeeze(-1).mT.reshape(evidence.shape)


def _residual_mask(infer: Inferrer, features: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (1 + coins(infer, mask @ weight, bias)) * features


def _residual_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "features": drawn(generator, dtype, 2, 5, 3),
        "mask": drawn(generator, dtype, 2, 5, 4),
        "weight": drawn(generator, dtype, 4, 3),
        "bias": drawn(generator, dtype, 3),
    }


def _pooled(infer: Inferrer, x: Tensor) -> Tensor:
    """The mean over pixels, (B, C): an inference that is asked nothing."""
    pixels = x.unsqueeze(1)
    return infer(Parts(templates=pixels, evidence=torch.zeros_like(pixels[..., :1, :]), values=pixels))[
        :, 0, 0
    ]


def _squeeze_excitation(infer: Inferrer, x: Tensor, reduce: Tensor, expand: Tensor) -> Tensor:
    gate = coins(infer, (_pooled(infer, x) @ reduce).relu() @ expand)
    return gate.unsqueeze(-2) * x


def _squeeze_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "x": drawn(generator, dtype, 2, 6, 4) + 1,
        "reduce": drawn(generator, dtype, 4, 3),
        "expand": drawn(generator, dtype, 3, 4),
    }


def _activation_map(infer: Inferrer, x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def _activation_classifier(infer: Inferrer, x: Tensor, weight: Tensor) -> Tensor:
    return coins(infer, _pooled(infer, x) @ weight.unsqueeze(-1)).squeeze(-1)


def _activation_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {"x": drawn(generator, dtype, 2, 6, 4) + 0.5, "weight": drawn(generator, dtype, 4)}


def _lstm(
    infer: Inferrer, x: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor
) -> Tensor:
    asked_i, asked_f, asked_g, asked_o = (x @ weight_x.mT + h @ weight_h.mT).chunk(4, -1)
    bias_i, bias_f, bias_g, bias_o = bias.chunk(4)
    gates = coins(infer, torch.cat([asked_i, asked_f, asked_o], -1), torch.cat([bias_i, bias_f, bias_o]))
    enter, keep, show = gates.chunk(3, -1)
    state = keep * c + enter * coins(infer, asked_g, 2 * bias_g, tails=-1.0)
    return torch.cat([show * coins(infer, state, tails=-1.0), state], -1)


def _lstm_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "x": drawn(generator, dtype, 3, 4),
        "h": drawn(generator, dtype, 3, 2),
        "c": drawn(generator, dtype, 3, 2),
        "weight_x": drawn(generator, dtype, 8, 4),
        "weight_h": drawn(generator, dtype, 8, 2),
        "bias": drawn(generator, dtype, 8),
    }


_SIDES = "0 and 1, the sides of a coin a unit"

_LESS = (
    "An exact gate moves less from its belief: how far its mean h has moved is taken off the evidence, λ = α(z - (h "
    "- μ))."
)

ENTRIES = (
    Entry(
        name="reformer",
        title="Reformer",
        family="Vision, hashing and gates",
        paper=Paper("Kitaev et al.", 2020, _REFORMER, "section 2 and appendix A"),
        formula="o_i = Σ_j p_ij v_j,  p_ij ∝ u_ij exp⟨q_i, q_j/‖q_j‖⟩",
        templates="q_j/‖q_j‖",
        preference=(
            "uniform on the j ≤ i that i meets in the same bucket, in any round; i itself only if there is none"
        ),
        evidence="q_i",
        meaning=_HASHING_MEANING,
        because=(
            "The rounds' answers, weighted by their normalisers, with a key met in N rounds divided by N, are one "
            "softmax over the union of what is met. The preference depends on the queries, by what hashes them, and "
            "passes no gradient. functional.hashing_attention computes it in chunks, without an n × n array. The "
            "paper's text has a scale 1/√d that it leaves out of its equations; so does this."
        ),
        exact_because=(
            "Mean and covariance under u are those of what a token meets: few keys, often in similar directions."
        ),
        written=_reformer,
        example=_hashing_example,
    ),
    Entry(
        name="reformer-as-run",
        title="Reformer, as it is run",
        family="Vision, hashing and gates",
        paper=Paper("Kitaev et al.", 2020, _REFORMER, "appendix A, and the code of transformers"),
        formula="o_i = Σ_j p_ij v_j,  p_ij ∝ N_ij exp⟨q_i, q_j/‖q_j‖⟩",
        templates="q_j/‖q_j‖",
        preference=(
            "u_ij ∝ N_ij, the number of times that i meets j ≤ i in all rounds; i itself only if it meets nobody"
        ),
        evidence="q_i",
        meaning=_HASHING_MEANING,
        because=(
            "The code that is run differs from the paper in two ways, and is one inference as well: neighbours in the "
            "sorted order are attended to whatever their bucket, and a key that is met in several rounds is counted "
            "as often, so that the number of meetings is the preference: who meets often is believed in more."
        ),
        exact_because="As for the Reformer.",
        written=_reformer_as_run,
        example=_hashing_example,
    ),
    Entry(
        name="u-gat-it",
        title="Class activation map of U-GAT-IT",
        family=_FAMILY,
        paper=Paper(
            "Kim et al.",
            2020,
            "U-GAT-IT: unsupervised generative attentional networks with adaptive layer-instance normalization",
            "section 2.1",
        ),
        formula="a_ik = w_k E_ik",
        templates="–",
        preference="–",
        evidence="–",
        closeness="–",
        values="E_ik, the activation of channel k at position i",
        meaning=(
            "Each channel is multiplied by the weight that it has in a classifier which tells the two domains apart, "
            "so that what makes the difference is large."
        ),
        verdict=Verdict.NOT_ONE,
        because=(
            "w_k may have any sign and size, so that nothing is averaged and w is no gate: a gate would be σ(w_k), "
            "the mean of a coin. What is inferred is the domain, by the classifier from which w comes "
            "(u-gat-it-classifier)."
        ),
        exact_differs=False,
        written=_activation_map,
        example=_activation_example,
        symmetries=(Symmetry({"x": -2}), Symmetry({"x": -1, "weight": -1}, -1)),
        estimators=("first_order",),
        takes_closeness=False,
    ),
    Entry(
        name="u-gat-it-classifier",
        title="Auxiliary classifier of U-GAT-IT",
        family=_FAMILY,
        paper=Paper(
            "Kim et al.",
            2020,
            "U-GAT-IT: unsupervised generative attentional networks with adaptive layer-instance normalization",
            "section 2.1",
        ),
        formula="η = σ(Σ_k w_k E̅_k),  E̅_k = (1/n) Σ_i E_ik",
        templates="pooling: E_i; class: 0 and 1",
        preference="uniform, in both",
        evidence="pooling: 0; class: Σ_k w_k E̅_k",
        values="pooling: E_i; class: 0 and 1",
        meaning=(
            "Nothing is asked of the positions, so that their mean stays where it is; it is evidence for the domain."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "Average pooling is an inference with z = 0, and its answer is the evidence of a coin. The paper's formula "
            "has the sum over positions, its text the mean, as here. A second classifier takes the largest activation "
            "of each channel instead."
        ),
        exact_because=_LESS,
        written=_activation_classifier,
        example=_activation_example,
        symmetries=(Symmetry({"x": -2}, None), Symmetry({"x": -1, "weight": -1}, None)),
    ),
    Entry(
        name="residual-attention",
        title="Mask of residual attention",
        family=_FAMILY,
        paper=Paper(
            "F. Wang et al.", 2017, "Residual attention network for image classification", "eqs. (3) and (4)"
        ),
        formula="H_ic = (1 + M_ic) F_ic,  M_ic = σ(⟨w_c, m_i⟩ + b_c)",
        templates=_SIDES,
        preference="u(1) = σ(b_c)",
        evidence="⟨w_c, m_i⟩",
        values="F_ic and 2F_ic: (1 + M) F is their mean under the coin",
        meaning=(
            "Before looking at the image a unit is open with probability σ(b_c), and the mask branch says by how much "
            "more or less. Masks of several modules multiply: the product is the mean over independent coins."
        ),
        because=(
            "One inference a unit, each over two templates; it is that of fenchel.Bernoulli. The paper's mask by "
            "channel divides by a norm, which is no mean of a coin."
        ),
        exact_because=_LESS,
        written=_residual_mask,
        example=_residual_example,
        symmetries=(
            Symmetry({"features": -2, "mask": -2}),
            Symmetry({"features": -1, "weight": -1, "bias": -1}, -1),
        ),
    ),
    Entry(
        name="squeeze-excitation",
        title="Squeeze and excitation",
        family=_FAMILY,
        paper=Paper("Hu et al.", 2018, "Squeeze-and-excitation networks", "eqs. (2) to (4)"),
        formula="y_ic = s_c x_ic,  s = σ(W₂ ReLU(W₁ x̄)),  x̄ = (1/n) Σ_i x_i",
        templates="squeeze: x_i; excitation: " + _SIDES,
        preference="uniform, in both",
        evidence="squeeze: 0; excitation: W₂ ReLU(W₁ x̄)",
        values="squeeze: x_i; excitation: 0 and x_ic",
        meaning=(
            "The mean of all positions, of which nothing is asked, is what the channels' coins are asked about."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "An inference with z = 0, whose answer goes through a network and is the evidence of a coin a channel."
        ),
        exact_because="The mean of the positions does not change; " + _LESS[0].lower() + _LESS[1:],
        written=_squeeze_excitation,
        example=_squeeze_example,
        symmetries=(Symmetry({"x": -2}),),
    ),
    Entry(
        name="lstm",
        title="Gates of an LSTM",
        family=_FAMILY,
        paper=Paper("Gers et al.", 2000, "Learning to forget: continual prediction with LSTM"),
        formula="c' = f ⊙ c + i ⊙ g,  h' = o ⊙ tanh c',  i, f, o = σ(W[x, h] + b),  g = tanh(W[x, h] + b)",
        templates="0 and 1 for i, f and o; -1 and 1 for g and tanh c'",
        preference="logit u = b for gates, 2b for g; uniform for tanh c'",
        evidence="W[x, h]; for tanh c' the state c'",
        values="the templates",
        meaning=(
            "All that bounds an LSTM is the mean of a coin, tanh of one with the sides -1 and 1. A bias is belief: 1 "
            "for the forget gate says that a cell is kept with probability 0.73 before anything is read. The paper has "
            "4σ(x) − 2 and 2σ(x) − 1 where tanh is run today: other sides, the same kind of coin. Nothing in it is a "
            "query that asks keys, as slides of the field wonder."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "Given c, c' is the mean of b_f c + b_i b_g over independent coins b, and it is the evidence of a further "
            "coin, whose mean is multiplied by that of o. Step by step c may grow, as no mean of given values does."
        ),
        exact_because=_LESS,
        written=_lstm,
        example=_lstm_example,
    ),
)
