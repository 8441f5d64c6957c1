"""Which positions of a vision model are which patches of its images, and the images as they are drawn."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["PatchGrid", "PatchImages", "patch_images"]

_LONGEST_SIDE = 96
_MOST_EXTRA = 16  # positions before the patches: class, distillation and register tokens


@dataclass(frozen=True)
class PatchGrid:
    """Where patches are among positions: after ``extra`` others, row by row.

    Attributes:
        rows: Patches from top to bottom.
        columns: Patches from left to right.
        extra: Positions before them, such as that of a class token.
    """

    rows: int
    columns: int
    extra: int

    def name(self, position: int) -> str:
        """What a position (from 0) is called.

        Example:
            >>> grid = PatchGrid(rows=2, columns=3, extra=1)
            >>> [grid.name(position) for position in (0, 1, 6)]
            ['[CLS]', 'row 1, column 1', 'row 2, column 3']
        """
        if position < self.extra:
            return "[CLS]" if position == 0 else f"extra token {position + 1}"
        row, column = divmod(position - self.extra, self.columns)
        return f"row {row + 1}, column {column + 1}"


@dataclass(frozen=True, eq=False)
class PatchImages:
    """The images of a batch as the model takes them.

    Attributes:
        pixels: (B, C, H, W).
        patch: Height and width of a patch.
        mean: What was subtracted from each channel of pixels from 0 to 1; None where that is not known.
        deviation: By what it was then divided; likewise.
    """

    pixels: Tensor
    patch: tuple[int, int]
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def grid(self, positions: int) -> PatchGrid | None:
        """The patches among so many positions; None where they are others, as after patches were merged."""
        height, width = self.pixels.shape[-2:]
        rows, columns = height // self.patch[0], width // self.patch[1]
        extra = positions - rows * columns
        return PatchGrid(rows, columns, extra) if rows and columns and 0 <= extra <= _MOST_EXTRA else None

    def thumbnail(self, row: int) -> str:
        """An image, cut to whole patches and at most 96 pixels a side, as a data URI."""
        from PIL import Image

        pixels = self.pixels[row].detach().double().cpu()
        if self.mean is not None and self.deviation is not None:
            mean, deviation = (
                torch.tensor(one).double()[:, None, None] for one in (self.mean, self.deviation)
            )
            pixels = pixels * deviation + mean
        else:
            low, high = pixels.min(), pixels.max()
            pixels = (pixels - low) / (high - low).clamp(min=1e-12)
        height, width = (
            size // patch * patch for size, patch in zip(pixels.shape[-2:], self.patch, strict=True)
        )
        pixels = (pixels[:, :height, :width].clamp(0, 1) * 255).round().to(torch.uint8)
        channels = pixels if pixels.shape[0] in (1, 3) else pixels[:1]
        mode = "RGB" if len(channels) == 3 else "L"
        content = bytes((channels.permute(1, 2, 0) if mode == "RGB" else channels[0]).flatten().tolist())
        picture = Image.frombytes(mode, (width, height), content)
        picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def patch_images(pixels: Tensor | None, config: Any, processor: Any = None) -> PatchImages | None:
    """What is known of the images of a batch; None where they are none, or the model does not cut them into patches.

    Args:
        pixels: (B, C, H, W), or None.
        config: The model's configuration, with a ``patch_size``.
        processor: What made them, with ``image_mean`` and ``image_std``.
    """
    size = getattr(config, "patch_size", None)
    sides: list[Any] = (
        [size, size] if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else []
    )
    whole = len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)
    if pixels is None or pixels.dim() != 4 or not whole:
        return None
    known = [
        _of_channels(getattr(processor, name, None), pixels.shape[1])
        if getattr(processor, "do_normalize", False)
        else None
        for name in ("image_mean", "image_std")
    ]
    return PatchImages(pixels, (sides[0], sides[1]), *known)


def _of_channels(values: Any, channels: int) -> tuple[float, ...] | None:
    if isinstance(values, int | float):
        return (float(values),) * channels
    if not isinstance(values, list | tuple) or len(values) != channels:
        return None
    return tuple(map(float, values))
