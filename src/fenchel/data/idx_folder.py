"""Fashion-MNIST, and other folders of four IDX files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fenchel.data.digest import image_digest
from fenchel.data.idx import IDX_STEMS, idx_file, read_idx_split
from fenchel.data.image_dataset import check_labels
from fenchel.data.source import AbstractImageSource, ImageSplit
from fenchel.errors import InputError

__all__ = ["FASHION_MNIST_CLASSES", "IdxFolder", "is_idx_folder"]

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
_DIGITS = tuple(map(str, range(10)))
# Of what the files with the published MD5 hold.
_OFFICIAL = {
    "train": (60_000, "9174a926c9bb2c76afbbd76cd1ea5d1146cdc63db25fd767d72f0c491dd03517"),
    "test": (10_000, "ba560071b263c06f00fb041e5c64115911e27504dd916ed389196c78e3d3ea4e"),
}


@dataclass(frozen=True)
class IdxFolder(AbstractImageSource):
    """A folder of four IDX files: images and labels of the training and of the test split, ten classes.

    Attributes:
        folder: Holds the files, compressed or not.
        fashion_mnist: Whether this has to be Fashion-MNIST. As many images as the official files hold must then be
            the official ones; another number is noted.
    """

    folder: Path
    fashion_mnist: bool = False

    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split."""
        images, labels = read_idx_split(self.folder, split)
        check_labels(labels, len(_DIGITS), str(self._label_file(split)))
        count, official = _OFFICIAL[split]
        if self.fashion_mnist and len(images) != count:
            note = f"{len(images):,} images, not the official {count:,}"
            return ImageSplit(images, labels, FASHION_MNIST_CLASSES, note)
        found = image_digest(images, labels)
        if self.fashion_mnist and found != official:
            raise InputError(
                f"{self.folder}: the {split} files have the sha256 {found[:12]}...; expected {official[:12]}..., that "
                "of Fashion-MNIST. They are corrupt or another data set such as MNIST: fetch them again, or give the "
                "folder's path in place of the name to read them as they are."
            )
        return ImageSplit(images, labels, FASHION_MNIST_CLASSES if found == official else _DIGITS)

    def training_files(self) -> tuple[Path, ...]:
        """The file of training images."""
        return (idx_file(self.folder, f"{IDX_STEMS['train']}-images-idx3-ubyte"),)

    def _label_file(self, split: str) -> Path:
        return idx_file(self.folder, f"{IDX_STEMS[split]}-labels-idx1-ubyte")


def is_idx_folder(folder: Path) -> bool:
    """Whether a folder holds any of the four files."""
    return any(
        idx_file(folder, f"{stem}-{rest}-ubyte").is_file()
        for stem in IDX_STEMS.values()
        for rest in ("images-idx3", "labels-idx1")
    )
