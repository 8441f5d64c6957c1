"""A small convolutional network that makes one vector of each cell of an image."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from fenchel.arguments.tensor import check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.sizes import check_sizes

__all__ = ["ImageCells"]

_LEAST_CHANNELS = 8


class ImageCells(nn.Module):
    """Convolutions of 3 × 3 pixels, each of which halves the image, and a norm of every cell in the end.

    Args:
        image_size: Side of the images, divisible by 2 to the power ``depth``.
        channels: Of the images.
        width: Of a cell's vector; each convolution before the last has half as many channels as the one after it.
        depth: How many convolutions there are.

    Raises:
        ProblemError: If a size cannot be used.

    Reference:
        The papers' figure 2b: "CNN layers", whose flattened feature tensor holds the templates.

    Example:
        >>> import torch
        >>> ImageCells(image_size=16, channels=3, width=8, depth=2)(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 16, 8])
    """

    def __init__(self, image_size: int, channels: int, width: int, depth: int) -> None:
        super().__init__()
        check_sizes("ImageCells", image_size=image_size, channels=channels, width=width, depth=depth)
        if image_size % 2**depth:
            raise ProblemError(
                f"image_size of ImageCells is {image_size} and depth {depth}; the size must be divisible by "
                f"2 ** depth = {2**depth}, since every convolution halves it"
            )
        self.image_size, self.channels = image_size, channels
        self.side = image_size // 2**depth
        wide = [channels, *(max(width >> (depth - 1 - layer), _LEAST_CHANNELS) for layer in range(depth))]
        wide[-1] = width
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1),
                nn.GroupNorm(1, after),
                nn.GELU(),
            )
            for before, after in pairwise(wide)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        """The cells from left to right and from top to bottom.

        Args:
            images: (B, channels, image_size, image_size), floating.

        Returns:
            (B, side², width).

        Raises:
            ProblemError: If the images are of another shape.
        """
        expected = (self.channels, self.image_size, self.image_size)
        check_tensor("images", images, "(B, channels, image_size, image_size)", dims=4)
        if tuple(images.shape[1:]) != expected:
            raise ProblemError(
                f"images have shape {tuple(images.shape)}; expected (B, {', '.join(map(str, expected))})"
            )
        for layer in self.layers:
            images = layer(images)
        return self.norm(images.flatten(2).transpose(1, 2))
