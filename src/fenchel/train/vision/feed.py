"""What a step trains on: images of a batch on the device, their classes, and whose templates join."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.data.augment import Change, MixUp, RandomCrop, RandomErasing, RandomFlip, in_turn
from fenchel.data.image_dataset import ImageDataset
from fenchel.data.paired_batches import PairedBatches
from fenchel.data.randomness import seeded_generator
from fenchel.data.standardise import Standardise
from fenchel.train.vision.options import TrainOptions
from fenchel.train.vision.recipe import RECIPES
from fenchel.train.workers import Workers

__all__ = ["Batch", "Feed"]

_LARGEST_ON_DEVICE = 2 << 30


@dataclass(frozen=True)
class Batch:
    """A process's share of a batch, on its device.

    Attributes:
        images: (b, C, H, W), standardised.
        labels: (b,), int64.
        partners: Which image of the share lends its templates to each (b,), -1 for none; None where none ever does.
        other_labels: Classes of what is mixed into the images (b,); None where nothing is.
        share: How much of each image is its own.
    """

    images: Tensor
    labels: Tensor
    partners: Tensor | None
    other_labels: Tensor | None = None
    share: float = 1.0

    @property
    def count(self) -> int:
        """How many images there are."""
        return len(self.labels)


class Feed:
    """Makes batches: the same ones for both models, whatever the number of processes.

    Args:
        options: Resolved.
        data: What is trained on.
        workers: The processes.
    """

    def __init__(self, options: TrainOptions, data: ImageDataset, workers: Workers) -> None:
        self._options, self._data, self._workers = options, data, workers
        stays = workers.device if data.images.numel() <= _LARGEST_ON_DEVICE else torch.device("cpu")
        self._images = data.images.to(stays)
        self._labels = data.labels.to(stays)
        self._change = _change(options, Standardise(data.mean, data.std))
        self._mixup = RECIPES[options.recipe].mixup
        self.steps_per_epoch = len(self._batches(0))

    def indices(self, epoch: int) -> Iterator[Tensor]:
        """The images of each step of an epoch: this process's share of the batch."""
        return iter(self._batches(epoch))

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """What the steps of an epoch train on, from one of them on."""
        for place, indices in enumerate(itertools.islice(self.indices(epoch), first, None), first):
            yield self.batch(indices, epoch * self.steps_per_epoch + place)

    def batch(self, indices: Tensor, step: int) -> Batch:
        """What a step trains on.

        Args:
            indices: What ``indices`` gave; images 2k and 2k + 1 are of the same class.
            step: Number of the step, from 0, over all epochs.
        """
        seed, device = self._options.seed, self._workers.device
        chosen = indices.to(self._images.device)
        pixels = self._images[chosen].to(device, non_blocking=True)
        labels = self._labels[chosen].to(device, non_blocking=True)
        generator = seeded_generator("augmentation", seed, step, self._workers.rank)
        images = self._change(pixels, generator)
        partners = self._partners(len(indices), step)
        if not self._mixup or float(torch.rand((), generator=generator)) >= self._mixup:
            return Batch(images, labels, partners)
        mixed = MixUp()(images, generator)
        return Batch(mixed.images, labels, partners, labels[mixed.others], mixed.share)

    def _batches(self, epoch: int) -> PairedBatches:
        return PairedBatches(
            self._data.labels,
            self._options.batch_size,
            seed=self._options.seed,
            epoch=epoch,
            rank=self._workers.rank,
            world_size=self._workers.count,
            class_names=self._data.class_names,
        )

    def _partners(self, count: int, step: int) -> Tensor | None:
        if not self._options.joins:
            return None
        # Drawn for the whole batch, so that it does not depend on how many processes share it.
        generator = seeded_generator("joining", self._options.seed, step)
        drawn = torch.rand(count * self._workers.count, generator=generator)
        joins = drawn[count * self._workers.rank :][:count] < self._options.join_probability
        beside = torch.arange(count) ^ 1
        return beside.masked_fill_(~joins, -1).to(self._workers.device, non_blocking=True)


def _change(options: TrainOptions, standardise: Standardise) -> Change:
    recipe = RECIPES[options.recipe]
    changes: list[Change] = [RandomCrop(recipe.crop_padding)] if recipe.crop_padding else []
    if options.flip:
        changes.append(RandomFlip())
    changes.append(lambda images, generator: standardise(images))
    if recipe.erasing:
        changes.append(RandomErasing(recipe.erasing))
    return in_turn(changes)
