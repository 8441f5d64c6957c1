"""Experiments that take no time: a handful of images, and a trainer that only writes what training would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.data import ImageDataset
from fenchel.errors import ConvergenceError, InputError
from fenchel.experiments.results import Results
from fenchel.train import TrainOptions, TrainResult
from fenchel.train.vision import ImageClassification, Images

__all__ = ["StandIn", "diverging", "few_images", "read_few_images", "result_of"]

_KNOWN = ("fashion-mnist", "cifar10", "cifar100")


def few_images(name: str = "fashion-mnist", *, train: int = 40, test: int = 20, note: str = "") -> Images:
    """Random images of two classes, 8 by 8 pixels, whose brightness tells the class."""
    generator = torch.Generator().manual_seed(len(name))

    def split(count: int) -> ImageDataset:
        labels = torch.arange(count) % 2
        noise = torch.randint(0, 100, (count, 1, 8, 8), generator=generator)
        images = (noise + 120 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
        return ImageDataset(images, labels, ("dark", "light"), name, note=note, mean=(0.4,), std=(0.3,))

    return split(train), split(test)


def read_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes experiments read a handful of images, and write a figure's numbers in place of drawing it."""

    def loaded(name: str) -> Images:
        if name not in _KNOWN:
            raise InputError(f"data is {name!r}; expected one of {', '.join(_KNOWN)}.")
        return few_images(name, note="JPEG, lossy" if name == "cifar10" else "")

    def write_numbers(results: Results, path: Path) -> None:
        path.write_text(f"{len(results.records)} of {results.planned} runs")

    monkeypatch.setattr(ImageClassification, "read", staticmethod(loaded))
    monkeypatch.setattr("fenchel.experiments.report.write_curves", write_numbers)


def accuracy_of(options: TrainOptions) -> float:
    """A made-up accuracy: a seed has its own luck, which all arms share, and OT-ViT is a little better."""
    luck = (0.0, 0.02, -0.015, 0.01)[options.seed % 4]
    gain = {"zero": 0.01, "shared": 0.004}.get(options.resolved().extra_preference or "", 0.0)
    return round(0.8 + luck + gain * (1 + 0.1 * options.seed), 5)


def result_of(options: TrainOptions, accuracy: float, *, epochs: int | None = None) -> TrainResult:
    """What a training might have come to."""
    done = options.epochs if epochs is None else epochs
    return TrainResult(
        options=options.resolved(),
        finished=done == options.epochs,
        description={
            "model": {"name": options.model, "configuration": {}, "parameters": 3_200_000},
            "data": {"name": options.data},
            "machine": {
                "device": "cpu",
                "processes": 1,
                "threads": 1,
                "precision": "float32",
                "versions": {},
            },
            "notes": [],
        },
        epochs=tuple(
            {
                "epoch": epoch,
                "train_loss": 1.0 / epoch,
                "test_loss": 1.1 / epoch,
                "test_accuracy": accuracy - 0.1 * (options.epochs - epoch),
                "seconds": 2.0,
                "images_per_second": 100.0,
            }
            for epoch in range(1, done + 1)
        ),
        train_seconds=2.0 * done,
        test_seconds=1.0,
        sessions=(),
    )


class StandIn:
    """A trainer that writes made-up results.

    Args:
        accuracy: Of a run.
        before: Called with the options before anything is written; it may raise.
    """

    def __init__(
        self,
        accuracy: Callable[[TrainOptions], float] = accuracy_of,
        before: Callable[[TrainOptions], Any] = lambda options: None,
    ) -> None:
        self._accuracy, self._before = accuracy, before
        self.trained: list[TrainOptions] = []

    def __call__(self, options: TrainOptions, directory: Path, **given: Any) -> TrainResult:
        assert given["resume"] is True
        assert [split.name for split in given["data"]] == [options.data] * 2
        self.trained.append(options)
        directory.mkdir(parents=True, exist_ok=True)
        self._before(options)
        result = result_of(options, self._accuracy(options))
        result.write(directory)
        return result

    @property
    def names(self) -> list[tuple[str, str, float, int]]:
        """Data, model with its preference, learning rate and seed of what was trained, in order."""
        return [
            (one.data, f"{one.model}/{one.extra_preference}", one.learning_rate, one.seed)
            for one in self.trained
        ]


def diverging(arm_model: str, seed: int) -> Callable[[TrainOptions], None]:
    """What raises as a diverging training does, for one model and seed."""

    def before(options: TrainOptions) -> None:
        if (options.model, options.seed) == (arm_model, seed):
            raise ConvergenceError("the training loss became nan at step 7 of 10.")

    return before
