r"""Random changes to batches of images: on tensors, all images at once, repeatable from a generator.

Every change is called with a batch (B, C, H, W) on any device and a ``torch.Generator`` on the CPU from which it draws
anew for each image; the same generator state gives the same result, on every device. All but ``RandomErasing`` take
bytes as well as real numbers.

``strong`` is the usual order for small images: cut out and mirror bytes, standardise, blot out. ``MixUp`` is apart from
it, as it changes labels too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fenchel.arguments import shown
from fenchel.arguments.tensor import FLOATING, INTEGERS, check_flags, check_tensor, checked_argument
from fenchel.data.standardise import Standardise
from fenchel.errors import ProblemError

__all__ = ["Change", "MixUp", "Mixed", "RandomCrop", "RandomErasing", "RandomFlip", "in_turn", "strong"]

Change = Callable[[Tensor, torch.Generator], Tensor]
"""Takes images and a generator, and gives images."""


@dataclass(frozen=True)
class RandomCrop:
    """Pads every image with zeros and cuts the old size out at a random place: a shift by up to ``padding`` pixels.

    Attributes:
        padding: Pixels on each side.

    Example:
        >>> images = torch.ones(1, 1, 3, 3, dtype=torch.uint8)
        >>> RandomCrop(padding=1)(images, torch.Generator().manual_seed(3))[0, 0].tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 0]]
    """

    padding: int = 4

    def __post_init__(self) -> None:
        checked_argument("place", self.padding, name="padding")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Shift each image (B, C, H, W) by its own amount."""
        count, _, height, width = _checked(images, generator).shape
        if not self.padding:
            return images
        shifts = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        down, right = shifts.to(images.device, non_blocking=True)
        windows = F.pad(images, (self.padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(count, device=images.device), :, down, right]


@dataclass(frozen=True)
class RandomFlip:
    """Mirrors images left to right.

    Attributes:
        probability: Of each image's being mirrored.

    Example:
        >>> images = torch.tensor([1, 2, 3]).reshape(1, 1, 1, 3)
        >>> RandomFlip(probability=1.0)(images, torch.Generator()).flatten().tolist()
        [3, 2, 1]
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.probability)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Mirror some of the images (B, C, H, W)."""
        chosen = _drawn(self.probability, len(_checked(images, generator)), generator)
        return torch.where(chosen.to(images.device)[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True)
class RandomErasing:
    r"""Blots out a random rectangle: 0 takes its place, which is the mean where images are standardised.

    The area is uniform in ``area``, the ratio of height to width log-uniform in ``aspect``, the place uniform.

    Attributes:
        probability: Of each image's losing a rectangle.
        area: Least and largest share of the image.
        aspect: Least and largest height over width; a side that is longer than the image's is cut to it.

    Reference:
        Zhong et al., Random erasing data augmentation, 2020.

    Example:
        >>> images = torch.ones(1, 1, 4, 4)
        >>> erased = RandomErasing(1.0, area=(0.25, 0.25), aspect=(1, 1))(images, torch.Generator())
        >>> float(erased.sum())
        12.0
    """

    probability: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)

    def __post_init__(self) -> None:
        _check_probability(self.probability)
        for name in ("area", "aspect"):
            ends = getattr(self, name)
            if not isinstance(ends, tuple | list) or len(ends) != 2:
                raise ProblemError(
                    f"{name} is {shown(ends)}; expected two numbers, the least and the largest"
                )
            for end in ends:
                checked_argument("positive", end, name=f"each end of {name}")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ProblemError(
                f"area is {self.area}; expected 0 < least <= largest <= 1, shares of the image."
            )
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ProblemError(f"aspect is {self.aspect}; expected 0 < least <= largest, height over width.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Blot out a rectangle in some of the images (B, C, H, W) of real numbers."""
        count, _, height, width = _checked(images, generator).shape
        if not images.is_floating_point():
            raise ProblemError(
                f"images have dtype {images.dtype}; expected real numbers, as 0 is to be the mean. "
                "Erase after Standardise."
            )
        chosen = _drawn(self.probability, count, generator)
        share, shape, down, right = torch.rand(4, count, generator=generator)
        pixels = height * width * (self.area[0] + (self.area[1] - self.area[0]) * share)
        low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
        ratio = torch.exp(low + (high - low) * shape)
        tall = (pixels * ratio).sqrt().round().clamp(1, height)
        wide = (pixels / ratio).sqrt().round().clamp(1, width)
        top, left = ((height - tall + 1) * down).floor(), ((width - wide + 1) * right).floor()
        rows = _between(torch.arange(height), top, tall) & chosen[:, None]
        columns = _between(torch.arange(width), left, wide)
        blot = rows[:, None, :, None] & columns[:, None, None, :]
        return images.masked_fill(blot.to(images.device), 0)


@dataclass(frozen=True)
class Mixed:
    """A batch whose images have been mixed.

    Attributes:
        images: λ times each image plus 1 − λ times another (B, C, H, W).
        others: Place of the other image in the batch (B,), int64.
        share: λ, at least one half.

    The loss is λ times that with an image's own label plus 1 − λ times that with the other's.
    """

    images: Tensor
    others: Tensor
    share: float


@dataclass(frozen=True)
class MixUp:
    r"""Mixes every image with another one of the batch, in the same shares for all.

    .. math:: \lambda \sim \max(b, 1 - b), \; b \sim \mathrm{Beta}(\alpha, \alpha)

    Attributes:
        alpha: 1 for uniform shares; near 0 images stay almost as they are.
        pairs: Mix images 2k and 2k + 1 with images 2j and 2j + 1, so that partners remain mixtures of the same
            two classes.

    Reference:
        Zhang et al., mixup: beyond empirical risk minimization, 2018.

    Example:
        >>> mixed = MixUp(alpha=0.4)(torch.rand(8, 1, 4, 4), torch.Generator().manual_seed(0))
        >>> 0.5 <= mixed.share <= 1, mixed.images.shape
        (True, torch.Size([8, 1, 4, 4]))
    """

    alpha: float = 1.0
    pairs: bool = True

    def __post_init__(self) -> None:
        checked_argument("alpha", self.alpha)
        check_flags(pairs=self.pairs)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Mixed:
        """Mix standardised images (B, C, H, W)."""
        count = len(_checked(images, generator))
        if not images.is_floating_point():
            raise ProblemError(
                f"images have dtype {images.dtype}; expected real numbers. Mix after Standardise."
            )
        if self.pairs and count % 2:
            raise ProblemError(f"there are {count} images; expected whole pairs. Or set pairs to False.")
        others = torch.randperm(count // (2 if self.pairs else 1), generator=generator)
        if self.pairs:
            others = (2 * others[:, None] + torch.arange(2)).reshape(-1)
        # torch draws from a Beta with its global generator only.
        drawn = random.Random(int(torch.randint(1 << 62, (), generator=generator)))  # noqa: S311
        own = drawn.betavariate(self.alpha, self.alpha)
        share = max(own, 1 - own)
        others = others.to(images.device)
        return Mixed(torch.lerp(images[others], images, share), others, share)


def in_turn(changes: Sequence[Change]) -> Change:
    """One change after the other, drawing from the same generator.

    Example:
        >>> images = torch.arange(4.0).reshape(1, 1, 1, 4)
        >>> twice = in_turn([RandomFlip(1.0), RandomFlip(1.0)])
        >>> twice(images, torch.Generator()).equal(images)
        True
    """
    if not isinstance(changes, Sequence) or not all(map(callable, changes)):
        raise ProblemError(
            f"changes is {shown(changes)}; expected a list of functions of images and a generator"
        )
    kept = tuple(changes)

    def change(images: Tensor, generator: torch.Generator) -> Tensor:
        for one in kept:
            images = one(images, generator)
        return images

    return change


def strong(standardise: Standardise, *, padding: int = 4, flip: float = 0.5, erasing: float = 0.25) -> Change:
    """What is usual on small images: bytes are cut out and mirrored, standardised, and blotted out in places.

    Args:
        standardise: Of the data set.
        padding: See ``RandomCrop``.
        flip: See ``RandomFlip``; 0 for digits, letters and whatever else a mirror changes.
        erasing: See ``RandomErasing``.

    Returns:
        A change from bytes to standardised images.

    Example:
        >>> change = strong(Standardise(mean=(0.5,), std=(0.25,)))
        >>> change(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.Generator().manual_seed(0)).dtype
        torch.float32
    """
    return in_turn(
        [
            RandomCrop(padding),
            RandomFlip(flip),
            lambda images, generator: standardise(images),
            RandomErasing(erasing),
        ]
    )


def _between(places: Tensor, start: Tensor, length: Tensor) -> Tensor:
    return (places >= start[:, None]) & (places < (start + length)[:, None])


def _drawn(probability: float, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator) < probability


def _checked(images: Tensor, generator: torch.Generator) -> Tensor:
    check_tensor("images", images, "(B, C, H, W)", dtypes=(*FLOATING, *INTEGERS), dims=4)
    if not isinstance(generator, torch.Generator):
        raise ProblemError(f"generator is {shown(generator)}; expected a torch.Generator")
    return images


def _check_probability(probability: float) -> None:
    checked_argument("probability", probability)
