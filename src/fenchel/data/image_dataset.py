"""Labelled images as two tensors, with what is needed to standardise and to name them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fenchel.arguments import checked, shown
from fenchel.data.digest import image_digest
from fenchel.data.randomness import seeded_generator
from fenchel.errors import InputError

__all__ = ["ImageDataset", "check_labels"]


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """One split of a labelled set of images, held in memory as bytes.

    Attributes:
        images: Pixels (N, C, H, W), uint8.
        labels: Class of each image (N,), int64, from 0.
        class_names: Name of each class.
        name: Where the images are from, as it was asked for.
        note: What must be said beside every figure made from them, such as "JPEG, lossy"; empty if nothing.
        mean: Mean of each channel over the training split, where pixels run from 0 to 1.
        std: Standard deviation of each channel over the training split, on the same scale.

    Raises:
        InputError: If the tensors do not fit each other, there are no images, or a label has no class.

    Example:
        >>> images = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).reshape(4, 3, 2, 2)
        >>> labels = torch.tensor([0, 1, 0, 1])
        >>> pictures = ImageDataset(images, labels, ("cat", "dog"), "mine", mean=(0.5,) * 3, std=(0.2,) * 3)
        >>> len(pictures), pictures.channels, pictures.image_size
        (4, 3, (2, 2))
        >>> pictures.subset(2, seed=0).class_counts
        (1, 1)
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str
    note: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        for what, tensor in (("images", images), ("labels", labels)):
            if not isinstance(tensor, Tensor) or tensor.is_nested:
                kind = "nested tensor" if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InputError(f"{self.name}: {what} are a {kind}; expected a dense tensor")
        for what in ("class_names", "mean", "std"):
            values, kind = getattr(self, what), str if what == "class_names" else float | int
            if not isinstance(values, tuple | list) or not all(isinstance(value, kind) for value in values):
                raise InputError(
                    f"{self.name}: {what} is {shown(values)}; expected a tuple, one value for each"
                )
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise InputError(
                f"{self.name}: images have shape {tuple(images.shape)} and dtype {images.dtype}; "
                "expected (N, C, H, W) of torch.uint8. Keep pixels as bytes; Standardise makes them real numbers."
            )
        if labels.ndim != 1 or labels.dtype != torch.int64:
            raise InputError(
                f"{self.name}: labels have shape {tuple(labels.shape)} and dtype {labels.dtype}; "
                "expected (N,) of torch.int64, the class of each image."
            )
        if len(images) != len(labels):
            raise InputError(
                f"{self.name}: there are {len(images)} images and {len(labels)} labels; expected one label an image."
            )
        if len(images) == 0:
            raise InputError(f"{self.name}: there are no images. Give at least one.")
        check_labels(labels, len(self.class_names), self.name)
        for statistic, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, self.channels):
                raise InputError(
                    f"{self.name}: {statistic} has {len(values)} values for {self.channels} channels; "
                    "expected one a channel."
                )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.images)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def classes(self) -> int:
        """The number of classes, whether or not each has images."""
        return len(self.class_names)

    @property
    def class_counts(self) -> tuple[int, ...]:
        """The number of images of each class."""
        return tuple(torch.bincount(self.labels, minlength=self.classes).tolist())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the shape, the labels and the pixels: the same images from another format have the same."""
        return image_digest(self.images, self.labels)

    def subset(self, count: int, seed: int) -> ImageDataset:
        """As many images of every class as there are of any other, as far as the classes go.

        Class counts differ by at most one, except where a class has no more images. A smaller subset of the same
        seed is contained in a larger one.

        Args:
            count: How many images.
            seed: Decides which.

        Returns:
            The images, in the order that they had; ``mean`` and ``std`` stay those of the training split.

        Raises:
            InputError: If there are not that many images.
        """
        checked("whole", count, name="count")
        checked("whole", seed, name="seed")
        if not 1 <= count <= len(self):
            raise InputError(
                f"{self.name}: a subset of {count} images was asked for and there are {len(self)}; "
                f"ask for 1 to {len(self)}."
            )
        generator = seeded_generator("subset", seed)
        # An image's turn is its rank in its class; turns are dealt out in rounds, classes in a random order.
        class_order = torch.randperm(self.classes, generator=generator)
        labels = self.labels.cpu()
        shuffled = torch.randperm(len(self), generator=generator)
        by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
        counts = torch.bincount(labels, minlength=self.classes)
        starts = torch.cumsum(counts, 0) - counts
        turn = torch.arange(len(self)) - starts[labels[by_class]]
        dealt = by_class[torch.argsort(turn * self.classes + class_order[labels[by_class]])]
        chosen = dealt[:count].sort().values.to(self.labels.device)
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


def check_labels(labels: Tensor, classes: int, where: str) -> None:
    """Checks that every label is the number of a class.

    Args:
        labels: Integers (N,).
        classes: The number of classes.
        where: Whose labels they are, for the message.

    Raises:
        InputError: If one is out of range; it names the first.
    """
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise InputError(
            f"{where}: label {int(labels[place])} of image {place} is out of range; expected 0 to {classes - 1}, "
            f"as there are {classes} classes. The file is corrupt or of another data set: fetch it again."
        )
