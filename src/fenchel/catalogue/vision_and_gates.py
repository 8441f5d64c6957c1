"""Attention between pixels, convolution, hashing, and gates, which are means of binary variables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from fenchel import functional
from fenchel.catalogue.declaration import NO_INFERENCE, Draw, Family, cited, log_weights_of
from fenchel.catalogue.entry import Inferrer, Symmetry, Verdict
from fenchel.catalogue.parts import Parts
from fenchel.nn.preference import QuadraticGridPosition

FAMILY = Family("Vision, hashing and gates")


_SAME_SIGHT = (
    "Exact inference shifts the mean of the templates less if they vary along the evidence. The keys most similar to a "
    "pixel then usually get less weight."
)


_PIXELS = (Symmetry({"x": -2}),)


@FAMILY.entry(
    title="Self-attention of SAGAN",
    paper=cited("zhang2019", "section 3"),
    formula="y_i = γ V Σ_j p_ij h(x_j) + x_i,  p_ij ∝ exp⟨f(x_j), g(x_i)⟩",
    templates="f(x_j), without 1/√d",
    evidence="g(x_i)",
    values="h(x_j)",
    because=("Some slides say that the result is concatenated with the input; the paper adds them."),
    exact_because=_SAME_SIGHT,
    example={"f": (4, 3), "g": (4, 3), "h": (4, 3), "x": (2, 6, 4), "v": (3, 4), "gamma": 0.7},
    symmetries=_PIXELS,
    layer={"evidence": "ScaledDot(scale=1.0)"},
)
def _sagan(infer: Inferrer, x: Tensor, f: Tensor, g: Tensor, h: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
    """A pixel attends to all pixels at any distance, with three maps of the image.

    The result is added to the input with a factor γ that starts at 0: initially the layer is the identity; γ is
    learned.
    """
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels @ f, evidence=pixels @ g, values=pixels @ h))
    return gamma * (seen.squeeze(1) @ v) + x


@FAMILY.entry(
    title="Non-local block, Gaussian",
    paper=cited("wang2018", "eqs. (1), (2) and (6)"),
    formula="y_i = W Σ_j p_ij g(x_j) + x_i,  p_ij ∝ exp⟨x_i, x_j⟩",
    templates="x_j",
    evidence="x_i",
    values="g(x_j)",
    exact_because=_SAME_SIGHT,
    example={"x": (2, 6, 4), "g": (4, 2), "w": (2, 4)},
    symmetries=_PIXELS,
)
def _non_local_gaussian(infer: Inferrer, x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Each pixel is both template and evidence, without a map.

    It attends to pixels in its own direction, more to longer ones. A Gaussian in the distance of pixels, as in
    non-local means, would have u_j ∝ exp(-‖x_j‖²/2) besides.
    """
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels, evidence=pixels, values=pixels @ g))
    return seen.squeeze(1) @ w + x


_EMBEDDED = {"theta": (4, 2), "phi": (4, 2), "g": (4, 2), "x": (2, 6, 4), "w": (2, 4)}


@FAMILY.entry(
    title="Non-local block, embedded Gaussian",
    paper=cited("wang2018", "eqs. (1), (3) and (6)"),
    formula="y_i = W Σ_j p_ij g(x_j) + x_i,  p_ij ∝ exp⟨θ(x_i), φ(x_j)⟩",
    templates="φ(x_j), without 1/√d",
    evidence="θ(x_i)",
    values="g(x_j)",
    exact_because=_SAME_SIGHT,
    example=_EMBEDDED,
    symmetries=_PIXELS,
    layer={"evidence": "ScaledDot(scale=1.0)"},
)
def _non_local_embedded(
    infer: Inferrer, x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor
) -> Tensor:
    """Dot-product attention between pixels, or between positions and times of a video, with a residual connection."""
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels @ phi, evidence=pixels @ theta, values=pixels @ g))
    return seen.squeeze(1) @ w + x


@FAMILY.entry(
    title="Non-local block, dot product",
    paper=cited("wang2018", "eqs. (1), (4) and (6)"),
    formula="y_i = W (1/N) Σ_j ⟨θ(x_i), φ(x_j)⟩ g(x_j) + x_i",
    values="g(x_j)",
    because=(
        "The coefficients ⟨θ(x_i), φ(x_j)⟩/N may be negative with any sum: they are not a distribution, and the output "
        "is not a mean of values. The same holds for the paper's concatenation, ReLU(⟨w, [θ_i, φ_j]⟩)/N: it is never "
        "negative, but its sum is arbitrary and may be 0. The output can be the first-order mean of g under a normal "
        "distribution on pairs (φ, g) with the moments of those seen, as for retention; this is not a preference over "
        "pixels, and its exact result is ridge regression."
    ),
    example=_EMBEDDED,
    symmetries=_PIXELS,
    **NO_INFERENCE,
)
def _non_local_dot(infer: Inferrer, x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Values are multiplied by scores and divided by their number N.

    For small scores s this is part of softmax attention: Σ_j p_j v_j is the mean of the values plus (1/N) Σ_j (s_j -
    s̄) v_j to first order in s.
    """
    seen = (x @ theta) @ ((x @ phi).mT @ (x @ g)) / x.shape[-2]
    return seen @ w + x


@FAMILY.entry(
    title="Double attention of A²-Nets",
    paper=cited("chen2018", "on feature gathering and distribution"),
    formula=(
        "g_k = Σ_i b_ki Θx_i,  b_ki ∝ exp⟨φ_k, x_i⟩ over positions i;  o_i = Σ_k v_ik g_k,  v_ik ∝ exp(⟨ρ_k, x_i⟩ "
        "+ c_k) over descriptors k"
    ),
    templates="gather: x_i; distribute: ρ_k",
    preference="gather: uniform; distribute: u_k ∝ exp c_k, by the map's bias",
    evidence="gather: φ_k, the same for every image; distribute: x_i",
    values="gather: Θx_i; distribute: g_k",
    verdict=Verdict.COMPOSITION,
    because=(
        "Two inferences, the first over positions and the second over descriptors at each position; the outputs of the "
        "first are the values of the second. Widely copied code has the second softmax over positions, or without a "
        "dimension, which in torch is over the images of a batch: then the weights of a position do not sum to 1, and "
        "its output is not a mean of descriptors."
    ),
    exact_because=(
        "Both steps shift a mean of templates less: of pixels in the first, of the rows of ρ in the second."
    ),
    example={"x": (2, 7, 3), "features": (3, 4), "gather": (3, 5), "distribute": (3, 5), "bias": (5,)},
    symmetries=(*_PIXELS, Symmetry({"gather": -1, "distribute": -1, "bias": -1}, None)),
)
def _a2_net(
    infer: Inferrer, x: Tensor, features: Tensor, gather: Tensor, distribute: Tensor, bias: Tensor
) -> Tensor:
    """Learned queries attend to the whole image, and each gathers one descriptor.

    Then each position attends to the descriptors. A bias of φ is the same for all positions and has no effect; one of ρ
    is a preference over descriptors.
    """
    pixels = x.unsqueeze(1)
    batch = (x.shape[0], 1, -1, -1)
    questions, addresses = gather.mT.expand(batch), distribute.mT.expand(batch)
    descriptors = infer(Parts(templates=pixels, evidence=questions, values=pixels @ features))
    # At each position over the descriptors: they are the keys, and the positions are the queries.
    return infer(
        Parts(templates=addresses, evidence=pixels, values=descriptors, log_preference=bias)
    ).squeeze(1)


@FAMILY.entry(
    title="Convolution as attention",
    paper=cited("cordonnier2020", "theorem 1 and eq. (9)"),
    formula="o_i = Σ_h W_h Σ_j p_hij v_j + b,  p_hij = u_hij ∝ exp(-a‖x_j - x_i - Δ_h‖²)",
    templates="the pixels, without effect",
    preference="a Gaussian around the pixel at offset Δ_h, one shift of the kernel per head",
    evidence="0",
    because=(
        "It equals a convolution up to an error: the total weight on other pixels is at most 4ε(1 + ε), ε = e^{−a}/(1 "
        "− e^{−3a}). The example has a = 30 and torch's conv2d as reference."
    ),
    exact_differs=False,
    exact_because=(
        "With z = 0 the result is u itself, for every estimator and every closeness with its minimum at u."
    ),
    example=lambda draw: {
        "image": draw(2, 2, 2, 3),
        "weight": draw(3, 2, 3, 3),
        "bias": draw(3),
        # With a = 30.
        "belief": QuadraticGridPosition((2, 3), heads=9, width=60**-0.5, padding=1).requires_grad_(False),
    },
    layer={"preference": "QuadraticGridPosition((2, 3), heads, (1, 2))", "evidence": "NoEvidence()"},
)
def _convolution(
    infer: Inferrer, image: Tensor, weight: Tensor, bias: Tensor, belief: QuadraticGridPosition
) -> Tensor:
    """Each head of a K × K kernel has a preference for one offset, independent of content, and no evidence.

    As a grows the preference tends to one pixel, and the sum of the mapped heads to the convolution. For zero padding
    the image has to be padded with pixels of value 0, or heads at the border see the nearest pixel.
    """
    (rows, columns), (up, left) = belief.grid, belief.padding
    batch, heads = image.shape[0], weight.shape[2] * weight.shape[3]
    padded = torch.nn.functional.pad(image, (left, left, up, up)).flatten(2).mT
    values = padded.unsqueeze(1).expand(-1, heads, -1, -1)
    nothing = values.new_zeros(batch, heads, rows * columns, values.shape[-1])
    near = log_weights_of(belief, nothing, values)
    shifted = infer(Parts(templates=values, evidence=nothing, values=values, log_preference=near))
    # The output map of the heads: W_h of shift h, summed.
    result = torch.einsum("bhqi,oih->boq", shifted, weight.flatten(2)) + bias.unsqueeze(-1)
    return result.unflatten(-1, belief.grid)


_HASHING_MEANING = (
    "The preference of a token is on the tokens in its chunk, or the previous one, after sorting all by hash: vectors "
    "in its direction are likely to be there. Keys are the normalised queries. A token attends to itself only if it "
    "meets no others, since nothing is more similar to it."
)


_HASHING = {"query": (1, 2, 8, 4), "value": (1, 2, 8, 3), "rotations": (2, 4, 2, 2), "chunk": 2}


def _hashed(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, **options: Any) -> Tensor:
    buckets = functional.hash_buckets(query, rotations)
    log_u = functional.hashing_log_preference(buckets, causal=True, dtype=query.dtype, **options)
    templates = normalize(query, dim=-1)
    return infer(Parts(templates=templates, evidence=query, values=value, log_preference=log_u))


@FAMILY.entry(
    title="Reformer",
    paper=cited("kitaev2020", "section 2 and appendix A"),
    formula="o_i = Σ_j p_ij v_j,  p_ij ∝ u_ij exp⟨q_i, q_j/‖q_j‖⟩",
    templates="q_j/‖q_j‖",
    preference=(
        "uniform on the j ≤ i that i meets in the same bucket, in any round; i itself only if there is none"
    ),
    meaning=_HASHING_MEANING,
    because=(
        "The outputs of all rounds, weighted by their normalisers and with a key met in N rounds divided by N, are one "
        "softmax over all keys met. The preference depends on the queries through their hashes and has no gradient. "
        "functional.hashing_attention computes it in chunks, without an n × n array. The paper's text has a scale 1/√d "
        "that its equations omit; it is omitted here."
    ),
    exact_because=(
        "Mean and covariance under u are those of the keys met: few, often in similar directions."
    ),
    example=_HASHING,
)
def _reformer(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk, same_bucket=True, count_meetings=False)


@FAMILY.entry(
    title="Reformer, as implemented",
    paper=cited("kitaev2020", "appendix A, and the code of transformers"),
    formula="o_i = Σ_j p_ij v_j,  p_ij ∝ N_ij exp⟨q_i, q_j/‖q_j‖⟩",
    templates="q_j/‖q_j‖",
    preference=(
        "u_ij ∝ N_ij, the number of times that i meets j ≤ i in all rounds; i itself only if it meets no others"
    ),
    meaning=_HASHING_MEANING,
    because=(
        "The published code differs from the paper in two ways, and is also one inference: neighbours in the sorted "
        "order are attended to in any bucket, and a key counts once for every round in which it is met. The number of "
        "meetings is the preference."
    ),
    exact_because="As for the Reformer.",
    example=_HASHING,
)
def _reformer_as_run(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk)


def _activation_example(draw: Draw) -> dict[str, Any]:
    return {"x": draw(2, 6, 4) + 0.5, "weight": draw(4)}


@FAMILY.entry(
    title="Class activation map of U-GAT-IT",
    paper=cited("kim2020", "section 2.1"),
    formula="a_ik = w_k E_ik",
    values="E_ik, the activation of channel k at position i",
    because=(
        "w_k may have any sign and size: nothing is averaged, and w is not a gate, which would be σ(w_k), the mean of "
        "a coin. The inference is that of the domain, by the classifier with weights w (u-gat-it-classifier)."
    ),
    example=_activation_example,
    symmetries=(Symmetry({"x": -2}), Symmetry({"x": -1, "weight": -1}, -1)),
    **NO_INFERENCE,
)
def _u_gat_it(infer: Inferrer, x: Tensor, weight: Tensor) -> Tensor:
    """Each channel is multiplied by its weight in a classifier of the two domains.

    This amplifies the channels that distinguish them.
    """
    return x * weight


_LESS = (
    "An exact gate shifts less from its preference: the shift of its mean h is subtracted from the evidence, λ = α(z - "
    "(h - μ))."
)


def coins(infer: Inferrer, evidence: Tensor, odds: Tensor | None = None, tails: float = 0.0) -> Tensor:
    r"""Means of independent coins, one inference each: at first order :math:`\sigma(\operatorname{logit}u + \alpha z)`.

    Args:
        infer: Of the mechanism.
        evidence: z of each coin, (..., units).
        odds: logit u of each unit, the prior of heads, (units,); None is fair coins.
        tails: The value of tails: 0, for which the mean is σ, or -1, for which it is tanh.
    """
    units = evidence.shape[-1]
    sides = evidence.new_tensor([tails, 1.0]).view(1, 1, 2, 1).expand(-1, units, -1, -1)
    log_u = None
    if odds is not None:
        log_u = torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1).view(1, units, 1, 2)
    asked = evidence.reshape(-1, units).mT.unsqueeze(-1).unsqueeze(0)
    result = infer(Parts(templates=sides, evidence=asked, values=sides, log_preference=log_u))
    return result.squeeze(0).squeeze(-1).mT.reshape(evidence.shape)


def _pooled(infer: Inferrer, x: Tensor) -> Tensor:
    """The mean over pixels, (B, C): an inference without evidence."""
    pixels = x.unsqueeze(1)
    return infer(Parts(templates=pixels, evidence=torch.zeros_like(pixels[..., :1, :]), values=pixels))[
        :, 0, 0
    ]


@FAMILY.entry(
    title="Auxiliary classifier of U-GAT-IT",
    paper=cited("kim2020", "section 2.1"),
    formula="η = σ(Σ_k w_k E̅_k),  E̅_k = (1/n) Σ_i E_ik",
    templates="pooling: E_i; class: 0 and 1",
    preference="uniform, in both",
    evidence="pooling: 0; class: Σ_k w_k E̅_k",
    values="pooling: E_i; class: 0 and 1",
    verdict=Verdict.COMPOSITION,
    because=(
        "Average pooling is an inference with z = 0, and its output is the evidence of a coin. The paper's formula has "
        "the sum over positions, its text the mean, as here. A second classifier uses the largest activation of each "
        "channel instead."
    ),
    exact_because=_LESS,
    example=_activation_example,
    symmetries=(Symmetry({"x": -2}, None), Symmetry({"x": -1, "weight": -1}, None)),
)
def _u_gat_it_classifier(infer: Inferrer, x: Tensor, weight: Tensor) -> Tensor:
    """The positions have no evidence, so their mean is unchanged; it is evidence for the domain."""
    return coins(infer, _pooled(infer, x) @ weight.unsqueeze(-1)).squeeze(-1)


_SIDES = "0 and 1, the sides of a coin for each unit"


@FAMILY.entry(
    title="Mask of residual attention",
    paper=cited("wang2017", "eqs. (3) and (4)"),
    formula="H_ic = (1 + M_ic) F_ic,  M_ic = σ(⟨w_c, m_i⟩ + b_c)",
    templates=_SIDES,
    preference="u(1) = σ(b_c)",
    evidence="⟨w_c, m_i⟩",
    values="F_ic and 2F_ic: (1 + M) F is their mean under the coin",
    because=(
        "One inference per unit, each over two templates, as with fenchel.Bernoulli. The paper's mask by channel "
        "divides by a norm, which is not the mean of a coin."
    ),
    exact_because=_LESS,
    example={"features": (2, 5, 3), "mask": (2, 5, 4), "weight": (4, 3), "bias": (3,)},
    symmetries=(
        Symmetry({"features": -2, "mask": -2}),
        Symmetry({"features": -1, "weight": -1, "bias": -1}, -1),
    ),
)
def _residual_attention(
    infer: Inferrer, features: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """A unit is open with prior probability σ(b_c), and the mask branch is the evidence.

    Masks of several modules multiply: the product is the mean over independent coins.
    """
    return (1 + coins(infer, mask @ weight, bias)) * features


@FAMILY.entry(
    title="Squeeze and excitation",
    paper=cited("hu2018", "eqs. (2) to (4)"),
    formula="y_ic = s_c x_ic,  s = σ(W₂ ReLU(W₁ x̄)),  x̄ = (1/n) Σ_i x_i",
    templates="squeeze: x_i; excitation: " + _SIDES,
    preference="uniform, in both",
    evidence="squeeze: 0; excitation: W₂ ReLU(W₁ x̄)",
    values="squeeze: x_i; excitation: 0 and x_ic",
    verdict=Verdict.COMPOSITION,
    because=(
        "An inference with z = 0; its output, mapped by a network, is the evidence of one coin per channel."
    ),
    exact_because="The mean of the positions does not change; " + _LESS[0].lower() + _LESS[1:],
    example=lambda draw: {"x": draw(2, 6, 4) + 1, "reduce": draw(4, 3), "expand": draw(3, 4)},
    symmetries=(Symmetry({"x": -2}),),
)
def _squeeze_excitation(infer: Inferrer, x: Tensor, reduce: Tensor, expand: Tensor) -> Tensor:
    """The mean of all positions, without evidence, determines the evidence of the channels' coins."""
    gate = coins(infer, (_pooled(infer, x) @ reduce).relu() @ expand)
    return gate.unsqueeze(-2) * x


@FAMILY.entry(
    title="Gates of an LSTM",
    paper=cited("gers2000"),
    formula="c' = f ⊙ c + i ⊙ g,  h' = o ⊙ tanh c',  i, f, o = σ(W[x, h] + b),  g = tanh(W[x, h] + b)",
    templates="0 and 1 for i, f and o; -1 and 1 for g and tanh c'",
    preference="logit u = b for gates, 2b for g; uniform for tanh c'",
    evidence="W[x, h]; for tanh c' the state c'",
    values="the templates",
    verdict=Verdict.COMPOSITION,
    because=(
        "Given c, c' is the mean of b_f c + b_i b_g over independent coins b, and the evidence of a further coin, "
        "whose mean is multiplied by that of o. Over several steps c may grow, unlike a mean of given values."
    ),
    exact_because=_LESS,
    example={"x": (3, 4), "h": (3, 2), "c": (3, 2), "weight_x": (8, 4), "weight_h": (8, 2), "bias": (8,)},
)
def _lstm(
    infer: Inferrer, x: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor
) -> Tensor:
    """Every bounded quantity of an LSTM is the mean of a coin; tanh is that of one with the sides -1 and 1.

    A bias is a preference: 1 for the forget gate keeps a cell with prior probability 0.73. The paper has 4σ(x) − 2 and
    2σ(x) − 1 where tanh is used today: coins with other sides. There are no queries and keys in it, a question raised
    in some slides.
    """
    asked_i, asked_f, asked_g, asked_o = (x @ weight_x.mT + h @ weight_h.mT).chunk(4, -1)
    bias_i, bias_f, bias_g, bias_o = bias.chunk(4)
    gates = coins(infer, torch.cat([asked_i, asked_f, asked_o], -1), torch.cat([bias_i, bias_f, bias_o]))
    enter, keep, show = gates.chunk(3, -1)
    state = keep * c + enter * coins(infer, asked_g, 2 * bias_g, tails=-1.0)
    return torch.cat([show * coins(infer, state, tails=-1.0), state], -1)
