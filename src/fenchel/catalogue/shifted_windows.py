"""Windows of an image, and a learned belief of offsets inside of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.believed import believed
from fenchel.catalogue.drawn import drawn, drawn_module
from fenchel.catalogue.entry import Entry, Paper
from fenchel.catalogue.parts import Parts
from fenchel.nn.arguments import combined
from fenchel.nn.preference import GridPosition

__all__ = ["ENTRIES"]


def _shifted_windows(
    infer: Inferrer, image: Tensor, project: Tensor, network: GridPosition, shift: int
) -> Tensor:
    side = network.grid[0]
    rows, columns = image.shape[1:3]
    windows = _windows(image.roll((-shift, -shift), (1, 2)), side)
    query, key, value = windows.unsqueeze(1) @ project.unsqueeze(1)
    belief = combined([believed(network, query, key), _together(rows, columns, side, shift, image)])
    found = infer(Parts.scaled_dot(query, key, value, belief))
    joined = found.transpose(1, 2).flatten(2)
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


ENTRIES = (
    Entry(
        name="swin",
        title="Shifted windows (Swin)",
        family="Scores and places",
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
)
