"""Pairs that a word tells apart, and trainings of both readers that take a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fenchel.data import LabelledPairs, Sentences, Splits
from fenchel.data.labelled_pairs import ENTAILMENT
from fenchel.train import ClassifierOptions, PairsOptions, TrainResult, train
from tests.train.text.small_texts import sentences

__all__ = [
    "PAIRS",
    "READING",
    "compared",
    "pair_options",
    "pair_splits",
    "pairs",
    "read",
    "read_options",
    "splits",
]

READING: dict[str, Any] = {
    "data": "small",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 3e-2,
    "width": 8,
    "heads": 2,
    "dropout": 0.1,
    "encoder": "words",
    "precision": "float32",
}
PAIRS: dict[str, Any] = {**READING, "learning_rate": 1e-2}
_ARGUMENTS = ("resume", "overwrite", "observer", "checkpoint_seconds", "stop")
_THINGS = ("dog", "cat", "bird", "boy", "girl")
_ACTIONS = ("sleeps", "runs", "sings", "eats")


def splits(size: int = 60, *, validation: bool = True) -> Splits[Sentences]:
    return Splits(sentences(size), sentences(20, seed=2) if validation else None, sentences(20, seed=1))


def pairs(count: int = 60, *, seed: int = 0, related: bool = True) -> LabelledPairs:
    """The same sentence, another action, or its denial; related the more the more words they share."""
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    premises, hypotheses, labels, degrees = [], [], [], []
    for place in range(count):
        thing, action = drawn.choice(_THINGS), drawn.choice(_ACTIONS)
        other = drawn.choice([one for one in _ACTIONS if one != action])
        label = place % 3
        premises.append(f"The {thing} {action}." if place % 2 else f"A {thing} {action} there")
        hypotheses.append([f"A {thing} {action}", f"A {thing} {other}", f"No {thing} {action}"][label])
        labels.append(label)
        degrees.append([4.8, 2.5, 3.6][label])
    return LabelledPairs(
        tuple(premises),
        tuple(hypotheses),
        tuple(labels),
        ENTAILMENT,
        tuple(degrees) if related else None,
        "small",
    )


def pair_splits(size: int = 60, *, related: bool = True) -> Splits[LabelledPairs]:
    return Splits(
        *(pairs(count, seed=seed, related=related) for count, seed in ((size, 0), (18, 2), (21, 1)))
    )


def read_options(**changes: Any) -> ClassifierOptions:
    return ClassifierOptions(**{**READING, **changes})


def pair_options(**changes: Any) -> PairsOptions:
    return PairsOptions(**{**PAIRS, **changes})


def read(directory: Path, *, data: Any = None, **given: Any) -> TrainResult:
    """Trains a classifier in a folder; what is no argument of ``train`` is an option."""
    passed = {name: given.pop(name) for name in _ARGUMENTS if name in given}
    return train(read_options(**given), directory, data=data or splits(), device="cpu", **passed)


def compared(directory: Path, *, data: Any = None, **given: Any) -> TrainResult:
    """Likewise, a model of pairs."""
    passed = {name: given.pop(name) for name in _ARGUMENTS if name in given}
    return train(pair_options(**given), directory, data=data or pair_splits(), device="cpu", **passed)
