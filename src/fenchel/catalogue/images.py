"""Attention between the pixels of an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import drawn
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.catalogue.verdict import Verdict

__all__ = ["ENTRIES"]

_FAMILY = "Vision, hashing and gates"
_PIXELS = (Symmetry({"x": -2}),)


def _sagan(infer: Inferrer, x: Tensor, f: Tensor, g: Tensor, h: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels @ f, evidence=pixels @ g, values=pixels @ h))
    return gamma * (seen.squeeze(1) @ v) + x


def _sagan_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    maps = {name: drawn(generator, dtype, 4, 3) for name in ("f", "g", "h")}
    return {
        "x": drawn(generator, dtype, 2, 6, 4),
        **maps,
        "v": drawn(generator, dtype, 3, 4),
        "gamma": torch.tensor(0.7, dtype=dtype),
    }


def _gaussian(infer: Inferrer, x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels, evidence=pixels, values=pixels @ g))
    return seen.squeeze(1) @ w + x


def _embedded_gaussian(
    infer: Inferrer, x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor
) -> Tensor:
    pixels = x.unsqueeze(1)
    seen = infer(Parts(templates=pixels @ phi, evidence=pixels @ theta, values=pixels @ g))
    return seen.squeeze(1) @ w + x


def _dot_product(infer: Inferrer, x: Tensor, theta: Tensor, phi: Tensor, g: Tensor, w: Tensor) -> Tensor:
    seen = (x @ theta) @ ((x @ phi).mT @ (x @ g)) / x.shape[-2]
    return seen @ w + x


def _gaussian_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "x": drawn(generator, dtype, 2, 6, 4),
        "g": drawn(generator, dtype, 4, 2),
        "w": drawn(generator, dtype, 2, 4),
    }


def _embedded_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    maps = {name: drawn(generator, dtype, 4, 2) for name in ("theta", "phi", "g")}
    return {"x": drawn(generator, dtype, 2, 6, 4), **maps, "w": drawn(generator, dtype, 2, 4)}


def _double(
    infer: Inferrer, x: Tensor, features: Tensor, gather: Tensor, distribute: Tensor, bias: Tensor
) -> Tensor:
    pixels = x.unsqueeze(1)
    batch = (x.shape[0], 1, -1, -1)
    questions, addresses = gather.mT.expand(batch), distribute.mT.expand(batch)
    descriptors = infer(Parts(templates=pixels, evidence=questions, values=pixels @ features))
    # At each place over the descriptors: here they are what is attended to, and the places ask.
    return infer(
        Parts(templates=addresses, evidence=pixels, values=descriptors, log_preference=bias)
    ).squeeze(1)


def _double_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "x": drawn(generator, dtype, 2, 7, 3),
        "features": drawn(generator, dtype, 3, 4),
        "gather": drawn(generator, dtype, 3, 5),
        "distribute": drawn(generator, dtype, 3, 5),
        "bias": drawn(generator, dtype, 5),
    }


_NON_LOCAL = "Non-local neural networks"
_SAME_SIGHT = (
    "Exact inference moves the mean of the templates less, where they vary along the evidence. What is most like a "
    "pixel has less weight then as a rule, not always."
)

ENTRIES = (
    Entry(
        name="sagan",
        title="Self-attention of SAGAN",
        family=_FAMILY,
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
        because=(
            "Slides of the field say that the answer is concatenated with the input; the paper adds them."
        ),
        exact_because=_SAME_SIGHT,
        written=_sagan,
        example=_sagan_example,
        symmetries=_PIXELS,
        layer={"evidence": "ScaledDot(scale=1.0)"},
    ),
    Entry(
        name="non-local-gaussian",
        title="Non-local block, Gaussian",
        family=_FAMILY,
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
        written=_gaussian,
        example=_gaussian_example,
        symmetries=_PIXELS,
    ),
    Entry(
        name="non-local-embedded",
        title="Non-local block, embedded Gaussian",
        family=_FAMILY,
        paper=Paper("X. Wang et al.", 2018, _NON_LOCAL, "eqs. (1), (3) and (6)"),
        formula="y_i = W Σ_j p_ij g(x_j) + x_i,  p_ij ∝ exp⟨θ(x_i), φ(x_j)⟩",
        templates="φ(x_j), without 1/√d",
        preference="uniform",
        evidence="θ(x_i)",
        values="g(x_j)",
        meaning=(
            "Dot-product attention between pixels, or between places and times of a film, with a residual beside it."
        ),
        exact_because=_SAME_SIGHT,
        written=_embedded_gaussian,
        example=_embedded_example,
        symmetries=_PIXELS,
        layer={"evidence": "ScaledDot(scale=1.0)"},
    ),
    Entry(
        name="non-local-dot",
        title="Non-local block, dot product",
        family=_FAMILY,
        paper=Paper("X. Wang et al.", 2018, _NON_LOCAL, "eqs. (1), (4) and (6)"),
        formula="y_i = W (1/N) Σ_j ⟨θ(x_i), φ(x_j)⟩ g(x_j) + x_i",
        templates="–",
        preference="–",
        evidence="–",
        closeness="–",
        values="g(x_j)",
        meaning=(
            "Values are multiplied by their scores and divided by their number N. For small scores s it is a part of "
            "softmax: Σ_j p_j v_j is the mean of the values plus (1/N) Σ_j (s_j - s̄) v_j to first order in s."
        ),
        verdict=Verdict.NOT_ONE,
        because=(
            "The factors ⟨θ(x_i), φ(x_j)⟩/N may be negative and add up to anything, so that they are no "
            "distribution, and the answer no mean of values. The paper's concatenation, ReLU(⟨w, [θ_i, φ_j]⟩)/N, is "
            "none either: nothing there is negative, but the sum is still free, and may be 0. The same sum can be "
            "the first-order mean of g under a normal distribution on pairs (φ, g) with the moments of those seen, "
            "as retention is read here; that is another belief than one in pixels, and its exact answer is ridge "
            "regression."
        ),
        exact_differs=False,
        written=_dot_product,
        example=_embedded_example,
        symmetries=_PIXELS,
        estimators=("first_order",),
        takes_closeness=False,
    ),
    Entry(
        name="a2-net",
        title="Double attention of A²-Nets",
        family=_FAMILY,
        paper=Paper(
            "Chen et al.", 2018, "A²-Nets: double attention networks", "on feature gathering and distribution"
        ),
        formula=(
            "g_k = Σ_i b_ki Θx_i,  b_ki ∝ exp⟨φ_k, x_i⟩ over places i;  o_i = Σ_k v_ik g_k,  v_ik ∝ exp(⟨ρ_k, x_i⟩ + "
            "c_k) over descriptors k"
        ),
        templates="gather: x_i; distribute: ρ_k",
        preference="gather: uniform; distribute: u_k ∝ exp c_k, by the map's bias",
        evidence="gather: φ_k, the same for every image; distribute: x_i",
        values="gather: Θx_i; distribute: g_k",
        meaning=(
            "Learned questions are put to the whole image, and each gathers one descriptor; then each place asks "
            "which of the descriptors it needs. A bias of φ adds the same to all places and changes nothing; one of ρ "
            "says which descriptors are likely before looking."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "Two inferences, the first over places and the second over descriptors at each place; the answers of the "
            "first are the values of the second. Much copied code takes the second softmax over places, or without "
            "saying, which in torch is over the images of a batch: then a place's weights do not add up to 1, and "
            "what it gets is no mean of descriptors."
        ),
        exact_because=(
            "Both steps move a mean of templates less: of pixels in the first, of the rows of ρ in the second."
        ),
        written=_double,
        example=_double_example,
        symmetries=(*_PIXELS, Symmetry({"gather": -1, "distribute": -1, "bias": -1}, None)),
    ),
)
