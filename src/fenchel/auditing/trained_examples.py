"""The examples that a training was tested on, as the batches that its model reads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fenchel.data.batch import Batch, Cursor
from fenchel.data.randomness import seeded_generator
from fenchel.data.shard import Shard
from fenchel.errors import InputError
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.preparation import prepared
from fenchel.train.result import TrainResult
from fenchel.train.workers import Workers

__all__ = ["TrainedBatch", "TrainedExamples"]

_BEGINNING = Cursor()
_ONLY_SHARD = Shard()


@dataclass(frozen=True)
class TrainedBatch(Batch):
    """A batch with what its task knows of it besides the model's inputs.

    Attributes:
        own: As the task has it.
    """

    own: Any = None


class TrainedExamples:
    """The test examples of a training, read again from where it had them.

    Args:
        folder: Of the training.
        count: So many of them, the same at every call; None for all.

    Raises:
        InputError: If the training has not written its results yet, or its data are not there or are others.
    """

    max_length = stride = None
    reads = "examples"

    def __init__(self, folder: str | Path, count: int | None = None) -> None:
        path = Path(folder)
        checkpoint, result = Checkpoint.read(path), TrainResult.read(path)
        kind, options = result.task, result.options
        try:
            data = kind.read(options.data)
        except InputError as error:
            raise InputError(
                f"{folder} was trained on {options.data!r}, which cannot be read here: {error}"
            ) from error
        self.task = prepared(kind, options.resolved(), data, Workers(0, 1, torch.device("cpu")))
        self._shard = _ONLY_SHARD
        self._fingerprints = self.task.fingerprints()
        differing = [
            name for name, value in self._fingerprints.items() if checkpoint.configuration.get(name) != value
        ]
        if differing:
            raise InputError(
                f"{differing[0]} of {options.data!r} is another than when {folder} was trained, so its examples would "
                "not be those that it was tested on. Put the data back as they were."
            )
        total = sum(batch.count for batch in self.task.examples("test"))
        if count is not None and count > total:
            raise InputError(
                f"{count} test examples were asked for, and {options.data!r} has {total}. Ask for fewer."
            )
        self._total, self.test_examples = total, count
        self._chosen = torch.ones(total, dtype=torch.bool)
        if count is not None:
            order = torch.randperm(total, generator=seeded_generator("test examples", 0))
            self._chosen[order[count:]] = False
        self.description = f"{options.data}, test {self.task.unit}"

    def shared(self, shard: Shard) -> TrainedExamples:
        """A share of the batches of the same examples."""
        share = copy.copy(self)
        share._shard = shard
        return share

    @property
    def text_sha256(self) -> str:
        """Of what is read."""
        return next(value for name, value in self._fingerprints.items() if name.startswith("test_"))

    def batches(self, start: Cursor = _BEGINNING) -> Iterator[TrainedBatch]:
        """The batches from a place on; see ``ReadyBatches``."""
        seen, place = 0, start
        for number, own in enumerate(self.task.examples("test"), start=1):
            chosen = self._chosen[seen : seen + own.count]
            documents = (1 + seen + chosen.nonzero().squeeze(1)).tolist()
            seen += own.count
            if number <= start.document or not documents or not self._shard.takes(number - 1):
                continue
            if len(documents) < own.count:
                own = own.taken(chosen.nonzero().squeeze(1))
            place = Cursor(number, 0, place.tokens + len(documents), place.documents + len(documents))
            yield TrainedBatch(
                inputs=self.task.inputs(own),
                counted=None,
                counted_decoder=None,
                documents=tuple(documents),
                windows=(1,) * len(documents),
                tokens=len(documents),
                after=place,
                fraction=seen / self._total,
                own=own,
            )
