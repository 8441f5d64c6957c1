"""A training that takes a second: ten classes of tiny images that can be told apart, and a model of two layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fenchel.data import ImageDataset
from fenchel.train import Progress, TrainOptions, TrainResult, train

__all__ = ["OPTIONS", "Recorder", "images", "options", "trained", "weights"]

CLASSES = 10
OPTIONS: dict[str, Any] = {
    "data": "small",
    "model": "vit",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 16,
    "precision": "float32",
}


def images(count: int = 40, *, seed: int = 0, size: int = 8) -> ImageDataset:
    """Images whose brightest pixel tells the class, in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    pixels = torch.randint(0, 60, (count, 1, size, size), generator=generator, dtype=torch.uint8)
    pixels.view(count, -1)[torch.arange(count), labels * 5] = 255
    names = tuple(map(str, range(CLASSES)))
    return ImageDataset(pixels, labels, names, "small", mean=(0.13,), std=(0.15,))


def options(**changes: Any) -> TrainOptions:
    return TrainOptions(**{**OPTIONS, **changes})


def trained(directory: Path, *, size: int = 40, **given: Any) -> TrainResult:
    """Trains in a folder; what is no argument of ``train`` is an option."""
    arguments = ("resume", "overwrite", "observer", "checkpoint_seconds", "device", "stop")
    passed = {name: given.pop(name) for name in arguments if name in given}
    data = (images(size), images(20, seed=1))
    return train(options(**given), directory, data=data, device=passed.pop("device", "cpu"), **passed)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """Everything in a folder's checkpoint, optimiser included."""
    from fenchel.train.checkpoint import Checkpoint

    return Checkpoint.read(directory).tensors


class Recorder:
    """Remembers what it is told, and does something at a step."""

    def __init__(self, at_step: int | None = None, action: Any = None) -> None:
        self.told: list[str] = []
        self.progress: list[Progress] = []
        self.records: list[Mapping[str, Any]] = []
        self._at_step, self._action = at_step, action

    def started(self, description: Mapping[str, Any]) -> None:
        self.told.append("started")

    def advanced(self, progress: Progress) -> None:
        self.told.append("advanced")
        self.progress.append(progress)
        if progress.step == self._at_step:
            self._action()

    def epoch_finished(self, record: Mapping[str, Any], progress: Progress) -> None:
        self.told.append("epoch")
        self.records.append(record)

    def finished(self) -> None:
        self.told.append("finished")
