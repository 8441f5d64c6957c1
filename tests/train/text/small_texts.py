"""Sentences that a word tells apart, and a training on them that takes a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fenchel.data import Sentences
from fenchel.train import TextOptions, TrainResult, train

__all__ = ["TEXT", "classified", "sentences", "text_options", "write_trec"]

TEXT: dict[str, Any] = {
    "data": "small",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 3e-2,
    "width": 8,
    "heads": 2,
    "precision": "float32",
}
_ASKED = ("who", "where", "when")
_OTHERS = ("is", "was", "the", "a", "old", "new", "tower", "river", "song", "?")


def sentences(count: int = 60, *, seed: int = 0, name: str = "small") -> Sentences:
    """Sentences of 2 to 7 words, whose first says of which of three classes they are."""
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    labels = tuple(place % len(_ASKED) for place in range(count))
    words = tuple((_ASKED[label], *drawn.choices(_OTHERS, k=drawn.randint(1, 6))) for label in labels)
    return Sentences(words, labels, ("person", "place", "time"), name)


def text_options(**changes: Any) -> TextOptions:
    return TextOptions(**{**TEXT, **changes})


def classified(directory: Path, *, size: int = 60, **given: Any) -> TrainResult:
    """Trains in a folder; what is no argument of ``train`` is an option."""
    arguments = ("resume", "overwrite", "observer", "checkpoint_seconds", "stop")
    passed = {name: given.pop(name) for name in arguments if name in given}
    data = (sentences(size), sentences(20, seed=1))
    return train(text_options(**given), directory, data=data, device="cpu", **passed)


def write_trec(folder: Path, *, train: int = 60, test: int = 12) -> Path:
    """A folder of the form of TREC's, with few questions."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, count, seed in (("raw_TREC.train", train, 0), ("raw_TREC.test", test, 1)):
        split = sentences(count, seed=seed)
        classes = ("HUM:ind", "LOC:city", "NUM:date")
        lines = [
            f"{classes[label]} {' '.join(words).capitalize()}"
            for label, words in zip(split.labels, split.words, strict=True)
        ]
        (folder / file).write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder
