"""A part of the examples to train on that is kept to validate on, the same for every seed of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch

from fenchel.data import Splits
from fenchel.data.randomness import seeded_generator
from fenchel.errors import InputError

__all__ = ["parted", "parts_of", "some_of"]

_VALIDATED = 0.1
_SPLIT_SEED = 0


class _Examples(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def taken(self, places: Sequence[int]) -> Any: ...


ExamplesT = TypeVar("ExamplesT", bound=_Examples)


def parted(known: ExamplesT, wanted: int | None) -> tuple[ExamplesT, ExamplesT]:
    """What is trained on and what is validated on, a tenth.

    Args:
        known: All of them.
        wanted: Train on so many; None for all the rest.

    Raises:
        InputError: If there are not so many.
    """
    order = torch.randperm(len(known), generator=seeded_generator("validation", _SPLIT_SEED)).tolist()
    held_out = max(round(_VALIDATED * len(known)), 1)
    rest = order[held_out:]
    if not 1 <= (len(rest) if wanted is None else wanted) <= len(rest):
        raise InputError(
            f"{known.name}: {wanted or 1} sentences to train on were asked for and there are {len(rest)}, besides "
            f"{held_out} to validate on; ask for fewer, or give more."
        )
    return known.taken(rest[:wanted]), known.taken(order[:held_out])


def some_of(known: ExamplesT, wanted: int | None) -> ExamplesT:
    """So many examples to train on, the same for every seed; all of them in their order where None are asked for.

    Raises:
        InputError: If there are not so many.
    """
    if wanted is None:
        return known
    if wanted > len(known):
        raise InputError(
            f"{known.name}: {wanted} sentences to train on were asked for and there are {len(known)}; ask for fewer."
        )
    order = torch.randperm(len(known), generator=seeded_generator("validation", _SPLIT_SEED)).tolist()
    return known.taken(order[:wanted])


def parts_of(
    data: Splits[ExamplesT], wanted: int | None, unit: str, *, classes: str = "classes"
) -> dict[str, ExamplesT]:
    """What is trained on, validated on and tested on; a tenth is held out where the data have nothing to validate on.

    Args:
        data: As they were read.
        wanted: Train on so many; None for all.
        unit: What examples are called.
        classes: What their classes are called.

    Raises:
        InputError: If the parts differ in their classes, or there are not so many.
    """
    for part in (data.validation, data.test):
        if part is not None and part.class_names != data.train.class_names:
            raise InputError(
                f"{part.name}: {unit} to train and to test on differ in their {classes}, {data.train.class_names} and "
                f"{part.class_names}; expected the same. Give splits of the same data."
            )
    if data.validation is None:
        train, validation = parted(data.train, wanted)
    else:
        train, validation = some_of(data.train, wanted), data.validation
    return {"train": train, "validation": validation, "test": data.test}
