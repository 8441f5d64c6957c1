"""Text whose words follow from their neighbours, and trainings on its blanks that take a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fenchel.data.articles import Articles
from fenchel.train import ClozeOptions, TrainResult, train

__all__ = ["BLANKS", "blanks_options", "filled", "pairs", "text"]

BLANKS: dict[str, Any] = {
    "data": "small",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 16,
    "longest": 12,
    "vocabulary": 60,
    "precision": "float32",
}
_ANIMALS = {"dog": "barks", "cat": "purrs", "cow": "moos", "bird": "sings"}
_GERMAN = {
    "dog": "hund",
    "cat": "katze",
    "cow": "kuh",
    "bird": "vogel",
    "barks": "bellt",
    "purrs": "schnurrt",
}
_GERMAN |= {"moos": "muht", "sings": "singt", "loudly": "laut", "softly": "leise", "the": "der", ".": "."}


def _sentence(drawn: random.Random) -> str:
    animal = drawn.choice(list(_ANIMALS))
    return f"the {animal} {_ANIMALS[animal]} {drawn.choice(('loudly', 'softly'))} ."


def text(seed: int = 0, articles: int = 12, name: str = "small") -> Articles:
    """Articles about animals, each of which makes its own sound; now and then a word was left out."""
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    return Articles(
        tuple(
            tuple(
                _sentence(drawn) if drawn.random() < 0.9 else "the <unk> Xq ."
                for _ in range(drawn.randint(3, 8))
            )
            for _ in range(articles)
        ),
        name,
    )


def pairs(seed: int = 0, count: int = 40) -> Articles:
    """Sentences about animals and their translations."""
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    english = [_sentence(drawn) for _ in range(count)]
    german = [" ".join(_GERMAN[word] for word in one.split()) for one in english]
    return Articles(tuple(zip(english, german, strict=True)), "pairs", languages=("en", "de"))


def blanks_options(**changes: Any) -> ClozeOptions:
    return ClozeOptions(**{**BLANKS, **changes})


def filled(directory: Path, *, paired: bool = False, **given: Any) -> TrainResult:
    """Trains in a folder; what is no argument of ``train`` is an option."""
    arguments = ("resume", "overwrite", "observer", "checkpoint_seconds", "stop", "data")
    passed = {name: given.pop(name) for name in arguments if name in given and name != "data"}
    made = pairs if paired else text
    data = (made(0), made(1), made(2))
    return train(blanks_options(**given), directory, data=data, device="cpu", **passed)
