"""A task with neither images nor words: a line through points. It asks for everything that the loop offers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fenchel.arguments import Number
from fenchel.data.randomness import seeded_generator
from fenchel.train import LoopOptions, Metric, StepLoss, Task, TrainResult, registered, train
from fenchel.train.task import DataSummary

__all__ = ["LINE", "Line", "LineOptions", "Points", "fitted"]

LINE: dict[str, Any] = {
    "data": "line",
    "epochs": 3,
    "batch_size": 4,
    "learning_rate": 0.1,
    "precision": "float32",
}


@dataclass(frozen=True)
class Points:
    """Some points (x, y)."""

    x: Tensor
    y: Tensor

    @property
    def count(self) -> int:
        return len(self.x)

    def taken(self, places: Any) -> Points:
        return Points(self.x[places], self.y[places])


@dataclass(frozen=True, kw_only=True)
class LineOptions(LoopOptions):
    """Those of the loop, and noise on what is seen in training."""

    RULES: ClassVar = MappingProxyType({"noise": Number("0.1", least=0.0)})

    noise: float = 0.1

    @property
    def model_title(self) -> str:
        return "a line"


@registered
class Line(Task[LineOptions, Points, Points]):
    """y = 2x + 1."""

    name = "line"
    unit = "points"
    options_type = LineOptions
    metrics = (
        Metric("error", "root of the mean square", higher_is_better=False, least=0.0),
        Metric("bias", "mean difference", higher_is_better=False),
    )
    headline = "error"
    summed = ("squares", "differences")

    @classmethod
    def read(cls, data: str) -> Points:
        x = torch.linspace(-1, 1, 22).unsqueeze(1)
        return Points(x, 2 * x + 1)

    @classmethod
    def summary(cls, data: Points) -> DataSummary:
        digest = hashlib.sha256(repr(data.y.tolist()).encode()).hexdigest()
        return DataSummary(data.count, data.count, None, "", digest)

    @classmethod
    def rebuilt(cls, description: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(1, 1)

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    @property
    def steps_per_epoch(self) -> int:
        return self.data.count // self.options.batch_size

    def batches(self, epoch: int, first: int) -> Iterator[Points]:
        size = self.options.batch_size
        order = torch.randperm(self.data.count, generator=seeded_generator("order", self.options.seed, epoch))
        for step in range(first, self.steps_per_epoch):
            chosen = self.data.taken(order[step * size :][:size])
            generator = seeded_generator("noise", self.options.seed, epoch, step)
            noise = self.options.noise * torch.randn(chosen.y.shape, generator=generator)
            yield Points(chosen.x, chosen.y + noise).taken(slice(self.workers.rank, None, self.workers.count))

    def examples(self, split: str) -> Iterator[Points]:
        assert split == "test"
        yield self.data.taken(slice(self.workers.rank, None, self.workers.count))

    def predicted(self, model: nn.Module, batch: Points) -> Tensor:
        return model(batch.x)

    def loss(self, predicted: Tensor, batch: Points) -> StepLoss:
        mean = (predicted - batch.y).square().mean()
        return StepLoss(mean, {"loss": mean.detach() * batch.count})

    def measured(self, predicted: Tensor, batch: Points) -> dict[str, Tensor]:
        difference = predicted - batch.y
        return {"squares": difference.square().sum(), "differences": difference.sum()}

    @classmethod
    def evaluated(cls, sums: Mapping[str, float], count: float) -> dict[str, float]:
        return {"error": (sums["squares"] / count) ** 0.5, "bias": sums["differences"] / count}

    def described(self, model: nn.Module) -> dict[str, Any]:
        data = {"name": "line", "note": "", "train_points": self.data.count, "test_points": self.data.count}
        return {"model": {"name": "line", "configuration": {}}, "data": data, "notes": ["Drawn by hand."]}

    def fingerprints(self) -> dict[str, str]:
        return {"points_sha256": self.summary(self.data).digest}


def fitted(directory: Path, **given: Any) -> TrainResult:
    """Trains in a folder; what is no argument of ``train`` is an option."""
    arguments = ("resume", "overwrite", "observer", "checkpoint_seconds", "stop", "data")
    passed = {name: given.pop(name) for name in arguments if name in given and name != "data"}
    return train(LineOptions(**{**LINE, **given}), directory, device="cpu", **passed)
