"""Attention between pixels: windows, non-local blocks, and convolution, whose weights are the preference alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.entry import Entry, Inferrer, Paper, Symmetry, Verdict
from fenchel.catalogue.parts import Parts
from fenchel.catalogue.random_inputs import believed, drawn, drawn_module
from fenchel.nn.arguments import combined
from fenchel.nn.preference import GridPosition, QuadraticGridPosition


def _shifted_windows(
    infer: Inferrer, image: Tensor, project: Tensor, network: GridPosition, shift: int
) -> Tensor:
    side = network.grid[0]
    rows, columns = image.shape[1:3]
    windows = _windows(image.roll((-shift, -shift), (1, 2)), side)
    query, key, value = windows.unsqueeze(1) @ project.unsqueeze(1)
    belief = combined([believed(network, query, key), _together(rows, columns, side, shift, image)])
    result = infer(Parts.scaled_dot(query, key, value, belief))
    joined = result.transpose(1, 2).flatten(2)
    return _image(joined, side, rows, columns).roll((shift, shift), (1, 2))


def _together(rows: int, columns: int, side: int, shift: int, image: Tensor) -> Tensor:
    """Whether pixels of a window were together before the image was rolled, (B·windows, 1, side², side²)."""
    at = [torch.arange(size, device=image.device).roll(-shift) < shift for size in (rows, columns)]
    rolled = 2 * at[0].long().unsqueeze(-1) + at[1].long()
    region = _windows(rolled[None, :, :, None].expand(len(image), -1, -1, 1), side).squeeze(-1)
    return (region.unsqueeze(-1) == region.unsqueeze(-2)).unsqueeze(1)


def _windows(image: Tensor, side: int) -> Tensor:
    """(B, rows, columns, width) as (B·windows, side², width)."""
    cut = image.unflatten(1, (-1, side)).unflatten(3, (-1, side))
    return cut.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def _image(windows: Tensor, side: int, rows: int, columns: int) -> Tensor:
    """The inverse of :func:`_windows`."""
    cut = windows.unflatten(0, (-1, rows // side, columns // side)).unflatten(3, (side, side))
    return cut.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _pixels(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "image": drawn(generator, dtype, 1, 4, 4, 4),
        "project": drawn(generator, dtype, 3, 2, 4, 2),
        "network": drawn_module(generator, dtype, GridPosition(heads=2, grid=(2, 2))),
        "shift": 1,
    }


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
    # At each position over the descriptors: here they are what is attended to, and the positions ask.
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


def _convolution_example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    belief = QuadraticGridPosition((2, 3), heads=9, width=60**-0.5, padding=1)  # a = 30
    return {
        "image": drawn(generator, dtype, 2, 2, 2, 3),
        "weight": drawn(generator, dtype, 3, 2, 3, 3),
        "bias": drawn(generator, dtype, 3),
        "belief": belief.requires_grad_(False),
    }


ENTRIES = (
    Entry(
        name="swin",
        title="Shifted windows (Swin)",
        family="Scores and positions",
        paper=Paper(
            "Liu et al.",
            2021,
            "Swin transformer: hierarchical vision transformer using shifted windows",
            "section 3.2 and eq. (4)",
        ),
        formula="p_ij ∝ exp(B_h[offset of i from j]) · exp(⟨q_i, k_j⟩/√d) for i and j in one window, else 0",
        templates="k_j/√d",
        preference="u_ij ∝ exp(B_h[offset of i from j]) in the window of i, else 0",
        evidence="q_i",
        meaning=(
            "An image is cut into windows, shifted by half a window in every other layer, and a pixel believes in "
            "those of its window alone, by a learned number for each offset. Rolling the image and masking what the "
            "roll has brought together is a way to compute it."
        ),
        exact_because="Mean and covariance are those of the pixels of a window, under the learned belief.",
        written=_shifted_windows,
        example=_pixels,
        layer={"preference": "GridPosition(heads, (2, 3))", "evidence": "ScaledDot()"},
    ),
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
            "Dot-product attention between pixels, or between positions and times of a film, with a residual beside it."
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
        written=_double,
        example=_double_example,
        symmetries=(*_PIXELS, Symmetry({"gather": -1, "distribute": -1, "bias": -1}, None)),
    ),
    Entry(
        name="convolution",
        title="Convolution as attention",
        family="Vision, hashing and gates",
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
        written=_convolution,
        example=_convolution_example,
        layer={"preference": "QuadraticGridPosition((2, 3), heads, (1, 2))", "evidence": "NoEvidence()"},
    ),
)
