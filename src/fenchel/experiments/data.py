"""What an experiment records of a data set: enough to report without it, and to notice that it is another one."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.data import ImageDataset, load

__all__ = ["DataDescription", "Images", "described", "loaded"]

Images = tuple[ImageDataset, ImageDataset]
"""What is trained on and what is tested on."""


@dataclass(frozen=True)
class DataDescription:
    """A data set in a few words.

    Attributes:
        name: As users type it.
        train_images: All there are to train on.
        test_images: All there are to test on.
        classes: How many.
        note: What users must know, such as that the images are lossy.
        digest: SHA-256 of both splits.
    """

    name: str
    train_images: int
    test_images: int
    classes: int
    note: str
    digest: str

    @property
    def summary(self) -> str:
        """The numbers and the beginning of the digest."""
        return f"{self.train_images:,} + {self.test_images:,} images ({self.digest[:12]})"

    def to_json(self) -> dict[str, Any]:
        """The description as JSON."""
        return asdict(self)


def loaded(name: str) -> Images:
    """Reads both splits of a data set.

    Args:
        name: As ``fenchel.data.load`` takes it.

    Returns:
        The images to train on and to test on.

    Raises:
        InputError: If they are not there or are damaged.
    """
    return load(name, split="train"), load(name, split="test")


def described(name: str, train: ImageDataset, test: ImageDataset) -> DataDescription:
    """What is recorded of a data set.

    Args:
        name: As users type it.
        train: The images to train on.
        test: The images to test on.

    Returns:
        The description.
    """
    return DataDescription(
        name=name,
        train_images=len(train),
        test_images=len(test),
        classes=len(train.class_names),
        note=train.note,
        digest=hashlib.sha256(f"{train.digest} {test.digest}".encode()).hexdigest(),
    )
