"""Convolution, as attention whose belief is all there is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.believed import believed
from fenchel.catalogue.drawn import drawn
from fenchel.catalogue.entry import Entry, Paper
from fenchel.catalogue.parts import Parts
from fenchel.nn.preference import QuadraticGridPosition

__all__ = ["ENTRIES"]


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
    found = torch.einsum("bhqi,oih->boq", shifted, weight.flatten(2)) + bias.unsqueeze(-1)
    return found.unflatten(-1, belief.grid)


def _example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    belief = QuadraticGridPosition((2, 3), heads=9, width=60**-0.5, padding=1)  # a = 30
    return {
        "image": drawn(generator, dtype, 2, 2, 2, 3),
        "weight": drawn(generator, dtype, 3, 2, 3, 3),
        "bias": drawn(generator, dtype, 3),
        "belief": belief.requires_grad_(False),
    }


ENTRIES = (
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
        example=_example,
        layer={"preference": "QuadraticGridPosition((2, 3), heads, (1, 2))", "evidence": "NoEvidence()"},
    ),
)
