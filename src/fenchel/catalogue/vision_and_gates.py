"""Attention between pixels, convolution, hashing, and gates, which are means of binary variables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from fenchel import functional
from fenchel.catalogue.declaration import NO_INFERENCE, Draw, Family, believed
from fenchel.catalogue.entry import Inferrer, Paper, Symmetry, Verdict
from fenchel.catalogue.parts import CoinParts, Parts
from fenchel.nn.preference import QuadraticGridPosition

FAMILY = Family("Vision, hashing and gates")


_SAME_SIGHT = (
    "Exact inference moves the mean of the templates less, where they vary along the evidence. What is most like a "
    "pixel has less weight then as a rule, not always."
)


def _sagan_example(draw: Draw) -> dict[str, Any]:
    maps = {name: draw(4, 3) for name in ("f", "g", "h")}
    return {"x": draw(2, 6, 4), **maps, "v": draw(3, 4), "gamma": draw.number(0.7)}


_PIXELS = (Symmetry({"x": -2}),)


@FAMILY.entry(
    title="Self-attention of SAGAN",
    paper=Paper("Zhang et al.", 2019, "Self-attention generative adversarial networks", "section 3"),
    formula="y_i = γ V Σ_j p_ij h(x_j) + x_i,  p_ij ∝ exp⟨f(x_j), g(x_i)⟩",
    templates="f(x_j), without 1/√d",
    preference="uniform",
    evidence="g(x_i)",
    values="h(x_j)",
    meaning=(
        "A pixel asks all pixels, however far away, in three maps of the image. The answer is added to what is "
        "there with a factor γ that starts at 0: in the beginning the layer changes nothing, and learns how much "
        "to."
    ),
    because=("Slides of the field say that the answer is concatenated with the input; the paper adds them."),
    exact_because=_SAME_SIGHT,
    example=_sagan_example,
    symmetries=_PIXELS,
    layer={"evidence": "ScaledDot(scale=1.0)"},
)
def _sagan(infer: Inferrer, x: Tensor, f: Tensor, g: Tensor, h: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels @ f, evidence=pixels @ g, values=pixels @ h))
    return gamma * (seen.squeeze(1) @ v) + x


_NON_LOCAL = "Non-local neural networks"


@FAMILY.entry(
    title="Non-local block, Gaussian",
    paper=Paper("X. Wang et al.", 2018, _NON_LOCAL, "eqs. (1), (2) and (6)"),
    formula="y_i = W Σ_j p_ij g(x_j) + x_i,  p_ij ∝ exp⟨x_i, x_j⟩",
    templates="x_j",
    preference="uniform",
    evidence="x_i",
    values="g(x_j)",
    meaning=(
        "Each pixel is template and evidence as it is: it looks for pixels in its own direction, the longer the "
        "more. A Gaussian in the distance of pixels, as in non-local means, would have u_j ∝ exp(-‖x_j‖²/2) "
        "besides."
    ),
    exact_because=_SAME_SIGHT,
    example=lambda draw: {"x": draw(2, 6, 4), "g": draw(4, 2), "w": draw(2, 4)},
    symmetries=_PIXELS,
)
def _non_local_gaussian(infer: Inferrer, x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels, evidence=pixels, values=pixels @ g))
    return seen.squeeze(1) @ w + x


def _embedded_example(draw: Draw) -> dict[str, Any]:
    maps = {name: draw(4, 2) for name in ("theta", "phi", "g")}
    return {"x": draw(2, 6, 4), **maps, "w": draw(2, 4)}


@FAMILY.entry(
    title="Non-local block, embedded Gaussian",
    paper=Paper("X. Wang et al.", 2018, _NON_LOCAL, "eqs. (1), (3) and (6)"),
    formula="y_i = W Σ_j p_ij g(x_j) + x_i,  p_ij ∝ exp⟨θ(x_i), φ(x_j)⟩",
    templates="φ(x_j), without 1/√d",
    preference="uniform",
    evidence="θ(x_i)",
    values="g(x_j)",
    meaning=(
        "Dot-product attention between pixels, or between positions and times of a film, with a residual beside it."
    ),
    exact_because=_SAME_SIGHT,
    example=_embedded_example,
    symmetries=_PIXELS,
    layer={"evidence": "ScaledDot(scale=1.0)"},
)
def _non_local_embedded(
    infer: Inferrer, x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor
) -> Tensor:
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels @ phi, evidence=pixels @ theta, values=pixels @ g))
    return seen.squeeze(1) @ w + x


@FAMILY.entry(
    title="Non-local block, dot product",
    paper=Paper("X. Wang et al.", 2018, _NON_LOCAL, "eqs. (1), (4) and (6)"),
    formula="y_i = W (1/N) Σ_j ⟨θ(x_i), φ(x_j)⟩ g(x_j) + x_i",
    values="g(x_j)",
    meaning=(
        "Values are multiplied by their scores and divided by their number N. For small scores s it is a part of "
        "softmax: Σ_j p_j v_j is the mean of the values plus (1/N) Σ_j (s_j - s̄) v_j to first order in s."
    ),
    because=(
        "The factors ⟨θ(x_i), φ(x_j)⟩/N may be negative and add up to anything, so that they are no "
        "distribution, and the answer no mean of values. The paper's concatenation, ReLU(⟨w, [θ_i, φ_j]⟩)/N, is "
        "none either: nothing there is negative, but the sum is still free, and may be 0. The same sum can be "
        "the first-order mean of g under a normal distribution on pairs (φ, g) with the moments of those seen, "
        "as retention is read here; that is another belief than one in pixels, and its exact answer is ridge "
        "regression."
    ),
    example=_embedded_example,
    symmetries=_PIXELS,
    **NO_INFERENCE,
)
def _non_local_dot(infer: Inferrer, x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor) -> Tensor:
    seen = (x @ theta) @ ((x @ phi).mT @ (x @ g)) / x.shape[-2]
    return seen @ w + x


def _double_example(draw: Draw) -> dict[str, Any]:
    return {
        "x": draw(2, 7, 3),
        "features": draw(3, 4),
        "gather": draw(3, 5),
        "distribute": draw(3, 5),
        "bias": draw(5),
    }


@FAMILY.entry(
    title="Double attention of A²-Nets",
    paper=Paper(
        "Chen et al.", 2018, "A²-Nets: double attention networks", "on feature gathering and distribution"
    ),
    formula=(
        "g_k = Σ_i b_ki Θx_i,  b_ki ∝ exp⟨φ_k, x_i⟩ over positions i;  o_i = Σ_k v_ik g_k,  v_ik ∝ exp(⟨ρ_k, x_i⟩ "
        "+ c_k) over descriptors k"
    ),
    templates="gather: x_i; distribute: ρ_k",
    preference="gather: uniform; distribute: u_k ∝ exp c_k, by the map's bias",
    evidence="gather: φ_k, the same for every image; distribute: x_i",
    values="gather: Θx_i; distribute: g_k",
    meaning=(
        "Learned questions are put to the whole image, and each gathers one descriptor; then each position asks "
        "which of the descriptors it needs. A bias of φ adds the same to all positions and changes nothing; one of "
        "ρ says which descriptors are likely before looking."
    ),
    verdict=Verdict.COMPOSITION,
    because=(
        "Two inferences, the first over positions and the second over descriptors at each position; the answers of "
        "the first are the values of the second. Much copied code takes the second softmax over positions, or "
        "without saying, which in torch is over the images of a batch: then a position's weights do not add up to "
        "1, and what it gets is no mean of descriptors."
    ),
    exact_because=(
        "Both steps move a mean of templates less: of pixels in the first, of the rows of ρ in the second."
    ),
    example=_double_example,
    symmetries=(*_PIXELS, Symmetry({"gather": -1, "distribute": -1, "bias": -1}, None)),
)
def _a2_net(
    infer: Inferrer, x: Tensor, features: Tensor, gather: Tensor, distribute: Tensor, bias: Tensor
) -> Tensor:
    pixels = x.unsqueeze(1)
    batch = (x.shape[0], 1, -1, -1)
    questions, addresses = gather.mT.expand(batch), distribute.mT.expand(batch)
    descriptors = infer(Parts(templates=pixels, evidence=questions, values=pixels @ features))
    # At each position over the descriptors: here they are what is attended to, and the positions ask.
    return infer(
        Parts(templates=addresses, evidence=pixels, values=descriptors, log_preference=bias)
    ).squeeze(1)


def _convolution_example(draw: Draw) -> dict[str, Any]:
    belief = QuadraticGridPosition((2, 3), heads=9, width=60**-0.5, padding=1)  # a = 30
    return {
        "image": draw(2, 2, 2, 3),
        "weight": draw(3, 2, 3, 3),
        "bias": draw(3),
        "belief": belief.requires_grad_(False),
    }


@FAMILY.entry(
    title="Convolution as attention",
    paper=Paper(
        "Cordonnier et al.",
        2020,
        "On the relationship between self-attention and convolutional layers",
        "theorem 1 and eq. (9)",
    ),
    formula="o_i = Σ_h W_h Σ_j p_hij v_j + b,  p_hij = u_hij ∝ exp(-a‖x_j - x_i - Δ_h‖²)",
    templates="the pixels, which do not matter",
    preference="a Gaussian around the pixel that is Δ_h away, one shift Δ_h of the kernel a head",
    evidence="0",
    meaning=(
        "A head of a K × K kernel believes that what matters is one step to its side, whatever is there, and asks "
        "nothing. As a grows its belief is one pixel, and heads that are mapped and added up are the convolution. "
        "For zero padding the image has to be padded with pixels of value 0, or heads at the border see the "
        "nearest pixel."
    ),
    because=(
        "It is a convolution to within an error: the weight beside the pixel is at most 4ε(1 + ε), ε = e^{−a}/(1 "
        "− e^{−3a}). The example has a = 30 and torch's conv2d for a reference."
    ),
    exact_differs=False,
    exact_because=(
        "With z = 0 the answer is u itself, by every estimator and under every closeness that is least at u."
    ),
    example=_convolution_example,
    layer={"preference": "QuadraticGridPosition((2, 3), heads, (1, 2))", "evidence": "NoEvidence()"},
)
def _convolution(
    infer: Inferrer, image: Tensor, weight: Tensor, bias: Tensor, belief: QuadraticGridPosition
) -> Tensor:
    (rows, columns), (up, left) = belief.grid, belief.padding
    batch, heads = image.shape[0], weight.shape[2] * weight.shape[3]
    padded = torch.nn.functional.pad(image, (left, left, up, up)).flatten(2).mT
    values = padded.unsqueeze(1).expand(-1, heads, -1, -1)
    nothing = values.new_zeros(batch, heads, rows * columns, values.shape[-1])
    near = believed(belief, nothing, values)
    shifted = infer(Parts(templates=values, evidence=nothing, values=values, log_preference=near))
    # The heads' output map: W_h of shift h, added up.
    result = torch.einsum("bhqi,oih->boq", shifted, weight.flatten(2)) + bias.unsqueeze(-1)
    return result.unflatten(-1, belief.grid)


_REFORMER = "Reformer: the efficient transformer"


_HASHING_MEANING = (
    "Before looking, a token believes in the tokens that fell into its chunk, or the one before, when all were "
    "sorted by hash: there is where vectors in its direction are likely to be. Keys are the queries with length 1. A "
    "token believes in itself only where it meets nobody else, since nothing is more like it."
)


def _hashing_example(draw: Draw) -> dict[str, Any]:
    return {"query": draw(1, 2, 8, 4), "value": draw(1, 2, 8, 3), "rotations": draw(2, 4, 2, 2), "chunk": 2}


def _hashed(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, **options: Any) -> Tensor:
    buckets = functional.hash_buckets(query, rotations)
    log_u = functional.hashing_log_preference(buckets, causal=True, dtype=query.dtype, **options)
    templates = normalize(query, dim=-1)
    return infer(Parts(templates=templates, evidence=query, values=value, log_preference=log_u))


@FAMILY.entry(
    title="Reformer",
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
    example=_hashing_example,
)
def _reformer(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk, same_bucket=True, count_meetings=False)


@FAMILY.entry(
    title="Reformer, as it is run",
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
    example=_hashing_example,
)
def _reformer_as_run(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk)


def _activation_example(draw: Draw) -> dict[str, Any]:
    return {"x": draw(2, 6, 4) + 0.5, "weight": draw(4)}


@FAMILY.entry(
    title="Class activation map of U-GAT-IT",
    paper=Paper(
        "Kim et al.",
        2020,
        "U-GAT-IT: unsupervised generative attentional networks with adaptive layer-instance normalization",
        "section 2.1",
    ),
    formula="a_ik = w_k E_ik",
    values="E_ik, the activation of channel k at position i",
    meaning=(
        "Each channel is multiplied by the weight that it has in a classifier which tells the two domains apart, "
        "so that what makes the difference is large."
    ),
    because=(
        "w_k may have any sign and size, so that nothing is averaged and w is no gate: a gate would be σ(w_k), "
        "the mean of a coin. What is inferred is the domain, by the classifier from which w comes "
        "(u-gat-it-classifier)."
    ),
    example=_activation_example,
    symmetries=(Symmetry({"x": -2}), Symmetry({"x": -1, "weight": -1}, -1)),
    **NO_INFERENCE,
)
def _u_gat_it(infer: Inferrer, x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


_LESS = (
    "An exact gate moves less from its belief: how far its mean h has moved is taken off the evidence, λ = α(z - (h "
    "- μ))."
)


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


def _pooled(infer: Inferrer, x: Tensor) -> Tensor:
    """The mean over pixels, (B, C): an inference that is asked nothing."""
    pixels = x.unsqueeze(1)
    return infer(Parts(templates=pixels, evidence=torch.zeros_like(pixels[..., :1, :]), values=pixels))[
        :, 0, 0
    ]


@FAMILY.entry(
    title="Auxiliary classifier of U-GAT-IT",
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
    example=_activation_example,
    symmetries=(Symmetry({"x": -2}, None), Symmetry({"x": -1, "weight": -1}, None)),
)
def _u_gat_it_classifier(infer: Inferrer, x: Tensor, weight: Tensor) -> Tensor:
    return coins(infer, _pooled(infer, x) @ weight.unsqueeze(-1)).squeeze(-1)


_SIDES = "0 and 1, the sides of a coin a unit"


def _residual_example(draw: Draw) -> dict[str, Any]:
    return {"features": draw(2, 5, 3), "mask": draw(2, 5, 4), "weight": draw(4, 3), "bias": draw(3)}


@FAMILY.entry(
    title="Mask of residual attention",
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
    example=_residual_example,
    symmetries=(
        Symmetry({"features": -2, "mask": -2}),
        Symmetry({"features": -1, "weight": -1, "bias": -1}, -1),
    ),
)
def _residual_attention(
    infer: Inferrer, features: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return (1 + coins(infer, mask @ weight, bias)) * features


@FAMILY.entry(
    title="Squeeze and excitation",
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
    example=lambda draw: {"x": draw(2, 6, 4) + 1, "reduce": draw(4, 3), "expand": draw(3, 4)},
    symmetries=(Symmetry({"x": -2}),),
)
def _squeeze_excitation(infer: Inferrer, x: Tensor, reduce: Tensor, expand: Tensor) -> Tensor:
    gate = coins(infer, (_pooled(infer, x) @ reduce).relu() @ expand)
    return gate.unsqueeze(-2) * x


def _lstm_example(draw: Draw) -> dict[str, Any]:
    return {
        "x": draw(3, 4),
        "h": draw(3, 2),
        "c": draw(3, 2),
        "weight_x": draw(8, 4),
        "weight_h": draw(8, 2),
        "bias": draw(8),
    }


@FAMILY.entry(
    title="Gates of an LSTM",
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
    example=_lstm_example,
)
def _lstm(
    infer: Inferrer, x: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor
) -> Tensor:
    asked_i, asked_f, asked_g, asked_o = (x @ weight_x.mT + h @ weight_h.mT).chunk(4, -1)
    bias_i, bias_f, bias_g, bias_o = bias.chunk(4)
    gates = coins(infer, torch.cat([asked_i, asked_f, asked_o], -1), torch.cat([bias_i, bias_f, bias_o]))
    enter, keep, show = gates.chunk(3, -1)
    state = keep * c + enter * coins(infer, asked_g, 2 * bias_g, tails=-1.0)
    return torch.cat([show * coins(infer, state, tails=-1.0), state], -1)
