"""Pixels from bytes to numbers of mean 0 and variance 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import BYTES, FLOATING, check_tensor
from fenchel.errors import ProblemError

__all__ = ["Standardise", "channel_statistics"]


class Standardise:
    r"""Turns bytes into real numbers that have mean 0 and variance 1 in each channel of the training images.

    .. math:: y = (x / 255 - \mathrm{mean}) / \mathrm{std}

    Args:
        mean: Of each channel, where pixels run from 0 to 1.
        std: Of each channel, on the same scale.
        dtype: Of the result.

    Raises:
        ProblemError: If the two have different lengths, or a standard deviation is not positive.

    Example:
        >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> Standardise(mean=(0.5,), std=(0.25,))(black_and_white).flatten().tolist()
        [-2.0, 2.0]
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], *, dtype: torch.dtype = torch.float32
    ) -> None:
        if dtype not in FLOATING:
            raise ProblemError(f"dtype is {shown(dtype)}; expected one of {', '.join(map(str, FLOATING))}")
        self.mean, self.std, self.dtype = _numbers("mean", mean), _numbers("std", std), dtype
        if len(self.mean) != len(self.std) or not self.mean:
            raise ProblemError(
                f"mean has {len(self.mean)} values and std {len(self.std)}; expected one of each a channel."
            )
        if not all(math.isfinite(value) for value in self.mean + self.std) or min(self.std) <= 0:
            raise ProblemError(
                f"mean is {self.mean} and std {self.std}; expected finite numbers and std > 0. "
                "A channel that never changes cannot be standardised: drop it."
            )
        shape = (len(self.mean), 1, 1)
        scale = torch.tensor(self.std, dtype=torch.float64).mul(255).reciprocal()
        shift = -torch.tensor(self.mean, dtype=torch.float64) / torch.tensor(self.std, dtype=torch.float64)
        self._scale = scale.to(dtype).reshape(shape)
        self._shift = shift.to(dtype).reshape(shape)

    def __call__(self, images: Tensor) -> Tensor:
        """Standardise.

        Args:
            images: Pixels (..., C, H, W), uint8, on any device.

        Returns:
            Real numbers of the same shape, on the same device.

        Raises:
            ProblemError: If the images are not bytes, or have another number of channels.
        """
        check_tensor("images", images, "(..., C, H, W)", dtypes=BYTES)
        if images.ndim < 3 or images.shape[-3] != len(self.mean):
            raise ProblemError(
                f"images have shape {tuple(images.shape)} and dtype {images.dtype}; expected (..., "
                f"{len(self.mean)}, H, W) of torch.uint8, as mean and std have {len(self.mean)} values."
            )
        scale, shift = self._scale.to(images.device), self._shift.to(images.device)
        return images.to(self.dtype).mul_(scale).add_(shift)

    def __repr__(self) -> str:
        return f"Standardise(mean={self.mean}, std={self.std}, dtype={self.dtype})"


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    try:
        return tuple(map(float, given))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ProblemError(
            f"{name} is {shown(given)}; expected one number for each channel, such as (0.5,)"
        ) from None


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, where pixels run from 0 to 1; exact but for the last rounding.

    Args:
        images: Pixels (N, C, H, W), uint8.

    Returns:
        Means and standard deviations, one a channel.

    Example:
        >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    value = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.reshape(-1).cpu(), minlength=256).double() / channel.numel()
        mean = float((share * value).sum())
        means.append(mean)
        deviations.append(math.sqrt(float((share * (value - mean).square()).sum())))
    return tuple(means), tuple(deviations)
