"""Recipes: what is done to the images and how the weights are held back, under one name."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["MIRRORED", "RECIPES", "Recipe"]

MIRRORED = frozenset({"fashion-mnist", "cifar10", "cifar100"})
"""Data whose classes a mirror leaves as they are; digits and letters are not among them."""


@dataclass(frozen=True)
class Recipe:
    """Regularisation and augmentation of a training.

    Attributes:
        weight_decay: AdamW's decoupled decay of matrices; biases, norms, tokens and positions have none.
        warmup_fraction: Share of all steps in which the learning rate rises linearly from 0.
        label_smoothing: Probability that is spread over all classes.
        gradient_clip: Largest Euclidean norm of the whole gradient; 0 for no limit.
        crop_padding: Pixels of padding on each side from which an image is cut out at random; 0 for none.
        flip: Whether images are mirrored left to right with probability 1/2, where the data allow it.
        erasing: Probability that a rectangle of an image is blotted out.
        mixup: Probability that the images of a step are mixed with others, in shares drawn uniformly.
    """

    weight_decay: float
    warmup_fraction: float
    label_smoothing: float
    gradient_clip: float
    crop_padding: int
    flip: bool
    erasing: float
    mixup: float


RECIPES = MappingProxyType(
    {
        "paper": Recipe(
            weight_decay=0.01,
            warmup_fraction=0.05,
            label_smoothing=0.0,
            gradient_clip=0.0,
            crop_padding=0,
            flip=False,
            erasing=0.0,
            mixup=0.0,
        ),
        "strong": Recipe(
            weight_decay=0.05,
            warmup_fraction=0.05,
            label_smoothing=0.1,
            gradient_clip=1.0,
            crop_padding=4,
            flip=True,
            erasing=0.25,
            mixup=0.5,
        ),
    }
)
"""``paper``: no augmentation, as far as the paper says. ``strong``: what is usual on small images."""
