"""Batches in which every image lies beside another random image of its class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import INTEGERS, check_tensor, checked_argument
from fenchel.data.randomness import seeded_generator
from fenchel.errors import InputError, ProblemError

__all__ = ["PairedBatches"]

MOST_CLASSES = 2**24
"""More than any set has, and few enough to count."""


class PairedBatches:
    """Index tensors of one epoch, in which images 2k and 2k + 1 of a batch are two of the same class.

    The images of each class are paired at random, all pairings being equally likely, and the pairs are shuffled. So
    every image has a uniformly random other one of its class beside it, and what a model computes for the one serves
    the other too. Pairs and their order follow from ``(seed, epoch)`` alone: the global batches are the same whatever
    the number of processes, of which each takes its own contiguous share.

    * In a class of odd size one image sits out the epoch: another one every epoch, each in its turn.
    * Pairs that do not fill a last batch are left out, unless they are all there is: then they are one smaller batch.

    Args:
        labels: Class of each image (N,), integers from 0.
        batch_size: Images in a batch, over all processes together; a multiple of ``2 * world_size``.
        seed: Decides, with the epoch, how images are paired.
        epoch: From 0.
        rank: Which of the processes this is.
        world_size: How many there are.
        class_names: For messages.

    Raises:
        ProblemError: If a number is out of range or labels are not integers.
        InputError: If a class has a single image, or there is not a pair for every process.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> batches = PairedBatches(labels, 4, seed=0, epoch=0)
        >>> len(batches)
        2
        >>> all(labels[batch[0::2]].equal(labels[batch[1::2]]) for batch in batches)
        True
    """

    def __init__(
        self,
        labels: Tensor,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        rank: int = 0,
        world_size: int = 1,
        class_names: Sequence[str] | None = None,
    ) -> None:
        _check_numbers(batch_size, seed, epoch, rank, world_size)
        self._labels = _checked_labels(labels, class_names)
        self._seed, self._epoch, self._rank, self._world_size = seed, epoch, rank, world_size
        pairs = int((torch.bincount(self._labels) // 2).sum())
        wanted = batch_size // 2
        self._batches = max(pairs // wanted, 1)
        self._pairs_a_rank = min(wanted, pairs) // world_size
        if self._pairs_a_rank == 0:
            raise InputError(
                f"there are {pairs} pairs of images of the same class for {world_size} processes; every process "
                "needs one. Give more images or start fewer processes."
            )

    def __len__(self) -> int:
        """The number of batches."""
        return self._batches

    def __iter__(self) -> Iterator[Tensor]:
        """Gives the indices (batch_size / world_size,), int64, of this process's share of each batch."""
        pairs = self._pairs()
        per_batch = self._pairs_a_rank * self._world_size
        for batch in range(self._batches):
            start = batch * per_batch + self._rank * self._pairs_a_rank
            yield pairs[start : start + self._pairs_a_rank].reshape(-1)

    def _pairs(self) -> Tensor:
        generator = seeded_generator("pairs", self._seed, self._epoch)
        playing = self._without_those_who_sit_out()
        playing = playing[torch.randperm(len(playing), generator=generator)]
        # Every class is even now, so that sorted by class no pair has two.
        pairs = playing[torch.argsort(self._labels[playing], stable=True)].reshape(-1, 2)
        return pairs[torch.randperm(len(pairs), generator=generator)]

    def _without_those_who_sit_out(self) -> Tensor:
        counts = torch.bincount(self._labels)
        order = torch.randperm(len(self._labels), generator=seeded_generator("turns", self._seed))
        by_class = order[torch.argsort(self._labels[order], stable=True)]
        starts = torch.cumsum(counts, 0) - counts
        odd = counts % 2 == 1
        out = starts[odd] + self._epoch % counts[odd]
        stays = torch.ones(len(by_class), dtype=torch.bool)
        stays[out] = False
        return by_class[stays].sort().values


def _check_numbers(batch_size: int, seed: int, epoch: int, rank: int, world_size: int) -> None:
    for name, rule, number in (
        ("world_size", "processes", world_size),
        ("rank", "place", rank),
        ("batch_size", "count", batch_size),
        ("epoch", "place", epoch),
        ("seed", "whole", seed),
    ):
        checked_argument(rule, number, name=name)
    if not 0 <= rank < world_size:
        raise ProblemError(f"rank is {rank} and world_size {world_size}; expected 0 <= rank < world_size.")
    if batch_size % (2 * world_size):
        raise ProblemError(
            f"batch_size is {batch_size}; expected a positive multiple of {2 * world_size}, so that each of "
            f"{world_size} process{'es' if world_size > 1 else ''} gets whole pairs."
        )


def _checked_labels(labels: Tensor, class_names: Sequence[str] | None) -> Tensor:
    check_tensor("labels", labels, "(N,), the class of each image", dtypes=INTEGERS, dims=1)
    if len(labels) == 0:
        raise InputError(
            "there are no labels, so there is nothing to pair. Give at least two images of a class."
        )
    labels = labels.detach().to("cpu", torch.int64)
    smallest, largest = (int(end) for end in labels.aminmax())
    if smallest < 0:
        raise ProblemError(f"labels go down to {smallest}; expected classes from 0.")
    if largest >= MOST_CLASSES:
        raise ProblemError(
            f"labels go up to {shown(largest)}; expected classes below {MOST_CLASSES:,}, from 0."
        )
    alone = (torch.bincount(labels) == 1).nonzero().flatten().tolist()
    if alone:
        named = ", ".join(
            f"{label} ({class_names[label]!r})" if class_names and label < len(class_names) else str(label)
            for label in alone[:5]
        )
        more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
        single = "class {} has a single image" if len(alone) == 1 else "classes {} have a single image each"
        raise InputError(
            f"{single.format(named + more)}, and another image of its class is wanted. "
            "Give at least two images of every class, or leave the class out."
        )
    return labels
