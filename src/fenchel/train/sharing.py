"""Which examples of a step are a process's own."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from fenchel.errors import InputError
from fenchel.train.workers import Workers

__all__ = ["places_of_step", "share_of_batch"]

OrderT = TypeVar("OrderT", Tensor, list[int])


def share_of_batch(batch_size: int, count: int, workers: Workers, unit: str) -> int:
    """How many examples of a step each process has.

    Args:
        batch_size: Over all processes.
        count: How many examples there are to train on; a batch has no more.
        workers: The processes.
        unit: What examples are called.

    Raises:
        InputError: If they cannot be dealt out evenly.
    """
    if batch_size % workers.count:
        raise InputError(
            f"batch size is {batch_size} for {workers.count} processes; it must be a multiple of {workers.count}, so "
            f"that each has as many {unit}."
        )
    share = min(batch_size, count) // workers.count
    if share == 0:
        raise InputError(
            f"there are {count} {unit} to train on for {workers.count} processes; every process needs one. Give more "
            f"{unit} or start fewer processes."
        )
    return share


def places_of_step(order: OrderT, step: int, share: int, workers: Workers) -> OrderT:
    """The places of a process's examples of a step of an epoch, in the order that the epoch has."""
    begin = (step * workers.count + workers.rank) * share
    return order[begin : begin + share]
