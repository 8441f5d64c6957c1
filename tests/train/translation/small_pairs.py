"""A language that is English word by word in another order, and a training on it that takes a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fenchel.data import ParallelCorpus, SentencePairs
from fenchel.train import TrainResult, TranslationOptions, train

__all__ = ["TRANSLATION", "corpus", "pairs", "translated", "translation_options"]

TRANSLATION: dict[str, Any] = {
    "data": "small",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 2e-2,
    "width": 16,
    "depth": 1,
    "dropout": 0.1,
    "subwords": 80,
    "longest": 20,
    "precision": "float32",
}
_WORDS = {"dog": "Hund", "cat": "Katze", "bird": "Vogel", "tree": "Baum", "house": "Haus"}
_COLOURS = {"red": "rot", "green": "grün", "old": "alt"}


def pairs(count: int = 60, *, seed: int = 0, name: str = "small") -> SentencePairs:
    """Sentences of one to three words with a colour each, which the other language puts behind the word."""
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    first, second = [], []
    for _ in range(count):
        words = drawn.choices(list(_WORDS), k=drawn.randint(1, 3))
        colours = drawn.choices(list(_COLOURS), k=len(words))
        first.append(" ".join(f"{colour} {word}" for colour, word in zip(colours, words, strict=True)))
        second.append(" ".join(f"{_WORDS[w]} {_COLOURS[c]}" for c, w in zip(colours, words, strict=True)))
    return SentencePairs(tuple(first), tuple(second), name)


def corpus(count: int = 60) -> ParallelCorpus:
    tests = {"test_2016_flickr": pairs(12, seed=2), "test_2017_flickr": pairs(9, seed=3)}
    return ParallelCorpus(("en", "de"), pairs(count), pairs(13, seed=1), tests, "small")


def translation_options(**changes: Any) -> TranslationOptions:
    return TranslationOptions(**{**TRANSLATION, **changes})


def translated(directory: Path, *, size: int = 60, **given: Any) -> TrainResult:
    """Trains in a folder; what is no argument of ``train`` is an option."""
    arguments = ("resume", "overwrite", "observer", "checkpoint_seconds", "stop")
    passed = {name: given.pop(name) for name in arguments if name in given}
    return train(translation_options(**given), directory, data=corpus(size), device="cpu", **passed)
