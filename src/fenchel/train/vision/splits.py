"""The images of a training: what is trained on and what is tested on, checked against each other."""

from __future__ import annotations

from fenchel.data.image_dataset import ImageDataset
from fenchel.errors import InputError
from fenchel.train.vision.options import TrainOptions

__all__ = ["SUBSET_SEED", "refuse_unlike", "refuse_unshared", "shortened"]

SUBSET_SEED = 0
"""Decides which images are taken where not all are."""


def shortened(
    data: tuple[ImageDataset, ImageDataset], options: TrainOptions
) -> tuple[ImageDataset, ImageDataset]:
    """As many images of each as the options want: the same ones whatever the seed of the training."""
    wanted = (options.train_images, options.test_images)
    train, test = (
        part if count is None else part.subset(count, SUBSET_SEED)
        for part, count in zip(data, wanted, strict=True)
    )
    return train, test


def refuse_unlike(train: ImageDataset, test: ImageDataset) -> None:
    """Refuse two splits that do not belong together, and images that are not square.

    Raises:
        InputError: Naming what differs.
    """
    for what, ours, theirs in (
        ("shape", tuple(train.images.shape[1:]), tuple(test.images.shape[1:])),
        ("classes", train.class_names, test.class_names),
        ("mean and deviation", (train.mean, train.std), (test.mean, test.std)),
    ):
        if ours != theirs:
            raise InputError(
                f"{train.name}: training and test images differ in their {what}, {ours} and {theirs}; expected the "
                "same. Give two splits of the same data."
            )
    height, width = train.image_size
    if height != width:
        raise InputError(
            f"{train.name}: images are {height} x {width} pixels; expected square ones. Crop or pad them."
        )


def refuse_unshared(batch_size: int, processes: int) -> None:
    """Refuse batches that cannot be shared in whole pairs.

    Raises:
        InputError: Naming both numbers.
    """
    if batch_size % (2 * processes):
        raise InputError(
            f"batch size is {batch_size} for {processes} processes; it must be a multiple of {2 * processes}, so that "
            "each has whole pairs."
        )
