"""Images with the captions that people wrote of them, and images as a network takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.data.digest import tensors_digest
from fenchel.data.randomness import seeded_generator
from fenchel.errors import InputError

__all__ = ["CaptionedImages", "as_input", "parted"]

_SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Images with captions, held in memory.

    Attributes:
        images: Pixels of each image (3, H, W), uint8; sizes may differ.
        captions: Of each image, at least one.
        ids: What each image is called where it is from.
        name: Where they are from, as it was asked for.
        note: What must be said beside every figure made from them; empty if nothing.

    Raises:
        InputError: If there are no images, one is no such tensor, or one has no captions or an empty one.

    Example:
        >>> grey = torch.full((3, 4, 6), 128, dtype=torch.uint8)
        >>> seen = CaptionedImages((grey, grey), (("a wall",), ("fog", "a wall")), ("1", "2"), "mine")
        >>> len(seen), seen.taken([1]).captions
        (2, (('fog', 'a wall'),))
    """

    images: tuple[Tensor, ...]
    captions: tuple[tuple[str, ...], ...]
    ids: tuple[str, ...]
    name: str
    note: str = ""

    def __post_init__(self) -> None:
        for what in ("images", "captions", "ids"):
            if not isinstance(getattr(self, what), tuple):
                raise InputError(f"{self.name}: {what} is {shown(getattr(self, what))}; expected a tuple.")
        if not self.images:
            raise InputError(f"{self.name}: there are no images. Give at least one.")
        counts = len(self.images), len(self.captions), len(self.ids)
        if len(set(counts)) > 1:
            raise InputError(
                f"{self.name}: there are {counts[0]} images, {counts[1]} lists of captions and {counts[2]} names; "
                "expected as many of each."
            )
        for image, captions, one in zip(self.images, self.captions, self.ids, strict=True):
            if not isinstance(image, Tensor) or image.dtype != torch.uint8:
                raise InputError(
                    f"{self.name}: image {one} is {shown(image)}; expected a tensor of pixels, uint8."
                )
            if image.ndim != 3 or image.shape[0] != 3 or not image.numel():
                raise InputError(
                    f"{self.name}: image {one} has shape {tuple(image.shape)}; expected (3, height, width)."
                )
            if not isinstance(captions, tuple) or not captions:
                raise InputError(f"{self.name}: image {one} has no captions; expected at least one.")
            for caption in captions:
                if not isinstance(caption, str) or not caption.strip():
                    raise InputError(
                        f"{self.name}: a caption of image {one} is {shown(caption)}; expected a sentence."
                    )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.images)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of pixels and captions."""
        digest = hashlib.sha256(tensors_digest({"image": image} for image in self.images).encode())
        for captions in self.captions:
            digest.update(repr(captions).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def taken(self, places: Sequence[int]) -> CaptionedImages:
        """Some of the images, in that order."""
        return replace(
            self,
            images=tuple(self.images[place] for place in places),
            captions=tuple(self.captions[place] for place in places),
            ids=tuple(self.ids[place] for place in places),
        )


def parted(
    data: CaptionedImages, held_out: float, train_images: int | None = None
) -> dict[str, CaptionedImages]:
    """What is trained on, validated on and tested on: whole images with all their captions, always the same ones.

    Args:
        data: All images.
        held_out: Share of them that is validated on, and as large a one that is tested on; at least an image each. Of
            0, what is trained on is validated and tested on besides: what is measured then is memory.
        train_images: Train on so many of those that are left; None for all of them.

    Raises:
        InputError: If there is nothing left to train on, or less than was asked for.

    Example:
        >>> grey = torch.zeros(3, 1, 1, dtype=torch.uint8)
        >>> seen = CaptionedImages((grey,) * 10, (("fog",),) * 10, tuple("abcdefghij"), "mine")
        >>> {name: len(part) for name, part in parted(seen, 0.1).items()}
        {'train': 8, 'validation': 1, 'test': 1}
    """
    if held_out == 0:
        held = _taken(data, train_images)
        return {"train": held, "validation": held, "test": held}
    count = max(round(held_out * len(data)), 1)
    if 2 * count >= len(data):
        raise InputError(
            f"{data.name}: {count} images to validate and {count} to test on of {len(data)} leave none to train on. "
            "Hold out fewer, or give more images."
        )
    order = torch.randperm(len(data), generator=seeded_generator("captions", _SPLIT_SEED)).tolist()
    return {
        "train": _taken(data.taken(sorted(order[2 * count :])), train_images),
        "validation": data.taken(sorted(order[:count])),
        "test": data.taken(sorted(order[count : 2 * count])),
    }


def _taken(data: CaptionedImages, wanted: int | None) -> CaptionedImages:
    if wanted is None:
        return data
    if wanted > len(data):
        raise InputError(
            f"{data.name}: {wanted} images to train on were asked for and there are {len(data)}; ask for fewer."
        )
    return data.taken(range(wanted))


def as_input(images: Sequence[Tensor], size: int) -> Tensor:
    """Images as a network takes them: stretched to a square, from −1 to 1.

    Stretching keeps all of an image, so that a cell is the same share of it everywhere.

    Args:
        images: Pixels of each (3, H, W), uint8.
        size: Side of the square.

    Returns:
        (N, 3, size, size), float32.
    """
    square = [
        torch.nn.functional.interpolate(
            image.unsqueeze(0).float(), (size, size), mode="bilinear", antialias=True, align_corners=False
        )
        for image in images
    ]
    return torch.cat(square) / 127.5 - 1.0
