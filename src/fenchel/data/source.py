"""What every place that images can be read from offers, and statistics that are computed once a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fenchel.data.standardise import channel_statistics
from fenchel.errors import InputError

__all__ = ["AbstractImageSource", "ImageSplit", "Statistics", "training_statistics"]

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Means and standard deviations, one a channel."""


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """What a source holds of one split.

    Attributes:
        images: Pixels (N, C, H, W), uint8.
        labels: Class of each image (N,), int64.
        class_names: Name of each class.
        note: What must be said beside every figure made from the images; empty if nothing.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    note: str = ""


class AbstractImageSource(ABC):
    """A place that images are read from."""

    @abstractmethod
    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split.

        Args:
            split: ``train`` or ``test``; a source that has splits of other names takes those too.

        Returns:
            The images.

        Raises:
            InputError: If the source has no such split, or cannot be read.
        """

    @abstractmethod
    def training_files(self) -> tuple[Path, ...]:
        """The files that hold the training images, so that statistics of unchanged files are computed once."""


_Identity = tuple[tuple[str, int, int], ...]
_known: dict[_Identity, Statistics] = {}


def training_statistics(source: AbstractImageSource, train: ImageSplit | None = None) -> Statistics:
    """Mean and standard deviation of each channel over the training images of a source.

    Args:
        source: Where the images are.
        train: The training images, if they have been read.

    Returns:
        The statistics; remembered in this process as long as the files do not change.

    Raises:
        InputError: If the training images cannot be read.
    """
    key = _identity(source.training_files())
    if key and train is None and key in _known:
        return _known[key]
    found = channel_statistics((train or _read_for_statistics(source)).images)
    if key:
        _known[key] = found
    return found


def _read_for_statistics(source: AbstractImageSource) -> ImageSplit:
    try:
        return source.read("train")
    except InputError as error:
        raise InputError(
            f"the training images are wanted for their mean and standard deviation: {error}"
        ) from None


def _identity(files: tuple[Path, ...]) -> _Identity:
    if not all(file.is_file() for file in files):
        return ()
    return tuple((str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
