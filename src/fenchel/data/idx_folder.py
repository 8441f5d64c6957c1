"""Fashion-MNIST, and other folders of four IDX files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fenchel.data.idx import IDX_STEMS, idx_file, read_idx_split
from fenchel.data.source import AbstractImageSource, ImageSplit

__all__ = ["FASHION_MNIST_CLASSES", "IdxFolder"]

FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class IdxFolder(AbstractImageSource):
    """A folder of four IDX files: images and labels of the training and of the test split.

    Attributes:
        folder: Holds the files, compressed or not.
    """

    folder: Path

    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split."""
        images, labels = read_idx_split(self.folder, split)
        return ImageSplit(images, labels, FASHION_MNIST_CLASSES)

    def training_files(self) -> tuple[Path, ...]:
        """The file of training images."""
        return (idx_file(self.folder, f"{IDX_STEMS['train']}-images-idx3-ubyte"),)
