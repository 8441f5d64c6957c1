"""A set of labelled images in the place of files of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fenchel.data.image_dataset import ImageDataset
from fenchel.errors import MissingExtraError

__all__ = ["LabelledImages"]


@dataclass(frozen=True)
class LabelledImages:
    """Images of a data set, read one by one as ``ImageFiles`` are.

    Attributes:
        dataset: The images with their classes.
        description: What they are.

    Example:
        >>> from fenchel.data import ImageDataset
        >>> grey = torch.zeros(2, 1, 4, 3, dtype=torch.uint8)
        >>> images = LabelledImages(ImageDataset(grey, torch.tensor([0, 1]), ("a", "b"), "mine"), "two images")
        >>> len(images), images.read(1, "L").size
        (2, (3, 4))
    """

    dataset: ImageDataset
    description: str

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def sha256(self) -> str:
        """Of the pixels and the classes of all of them."""
        return self.dataset.digest

    def name(self, number: int) -> str:
        """What an image (from 0) is called in messages."""
        return f"image {number + 1} of {self.description}"

    def read(self, number: int, mode: str = "RGB") -> Any:
        """One image as Pillow has it.

        Args:
            number: Which, from 0.
            mode: Of Pillow, such as ``RGB`` or ``L``.

        Raises:
            MissingExtraError: If Pillow is not installed.
        """
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtraError("PIL", "train") from error
        pixels: torch.Tensor = self.dataset.images[number].cpu()
        colour = pixels.shape[0] == 3
        laid = pixels.permute(1, 2, 0) if colour else pixels[0]
        size = (pixels.shape[2], pixels.shape[1])
        made = Image.frombytes("RGB" if colour else "L", size, bytes(laid.flatten().tolist()))
        return made if made.mode == mode else made.convert(mode)
