"""The classification of sentences: what the loop does not know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.data import Sentences, Vocabulary, load_sentences
from fenchel.data.randomness import seeded_generator
from fenchel.errors import InputError
from fenchel.train.classification import ACCURACY, JUDGED, LOSS, judged_classes, sums_of
from fenchel.train.held_out import parted
from fenchel.train.registry import registered
from fenchel.train.sharing import places_of_step, share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task, check_pair
from fenchel.train.text.options import TextOptions
from fenchel.train.workers import Workers

__all__ = ["Batch", "Splits", "TextClassification"]

Splits = tuple[Sentences, Sentences]
"""What is trained and validated on, and what is tested on."""

_LEAST = 2
_TEST_BATCH = 500


@dataclass(frozen=True)
class Batch:
    """A process's share of some sentences, on its device.

    Attributes:
        numbers: Of the words (b, n), 0 for padding.
        labels: (b,), int64.
    """

    numbers: Tensor
    labels: Tensor

    @property
    def count(self) -> int:
        """How many sentences there are."""
        return len(self.labels)

    def taken(self, places: Tensor | slice) -> Batch:
        """Some of them, as wide as the longest needs."""
        numbers = self.numbers[places]
        return Batch(numbers[:, : int((numbers != 0).sum(1).max())], self.labels[places])


@registered
class TextClassification(Task[TextOptions, Splits, Batch]):
    """A classifier of sentences.

    A tenth of the sentences to train on, the same for every seed, is kept to validate on after epochs. Vocabulary and
    the length at which sentences are cut are those of the rest. The test is read once, after the last epoch.
    """

    name = "text"
    models = ("attention-pooling", "mean-pooling")
    unit = "sentences"
    options_type = TextOptions
    metrics = (LOSS, ACCURACY)
    headline = "accuracy"
    trained = ("loss", "accuracy")
    judges = JUDGED
    watched = "validation"

    def __init__(self, options: TextOptions, data: Splits, workers: Workers) -> None:
        check_pair(data, Sentences)
        super().__init__(options, data, workers)
        known, test = data
        if known.class_names != test.class_names:
            raise InputError(
                f"{known.name}: sentences to train and to test on differ in their classes, {known.class_names} and "
                f"{test.class_names}; expected the same. Give two splits of the same data."
            )
        train, validation = parted(known, options.train_sentences)
        self._splits = {"train": train, "validation": validation, "test": test}
        self.vocabulary = Vocabulary.of(train.words, least=_LEAST)
        self._longest = max(map(len, train.words))
        self._numbered = {name: self._as_batch(split) for name, split in self._splits.items()}
        self._share = share_of_batch(options.batch_size, len(train), workers, self.unit)

    @classmethod
    def read(cls, data: str) -> Splits:
        """The sentences of a name or path."""
        return load_sentences(data)

    @classmethod
    def summary(cls, data: Splits) -> DataSummary:
        """How many sentences there are, and which."""
        train, test = data
        digest = hashlib.sha256(f"{train.digest} {test.digest}".encode()).hexdigest()
        note = "; ".join(dict.fromkeys(part.note for part in data if part.note))
        return DataSummary(len(train), len(test), len(train.class_names), note, digest)

    def model(self) -> nn.Module:
        """A classifier with these words and classes."""
        options = self.options
        configuration: dict[str, Any] = {
            "vocabulary": len(self.vocabulary),
            "classes": len(self._splits["train"].class_names),
            "width": options.width,
            "dropout": options.dropout,
        }
        if options.model == "attention-pooling":
            asked = ("heads", "estimator", "alpha", "preference")
            configuration |= {name: getattr(options, name) for name in asked} | {"longest": self._longest}
        return models.build(options.model, **configuration)

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._splits["train"]) // (self._share * self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The sentences in an order of their own every epoch."""
        train, share = self._numbered["train"], self._share
        generator = seeded_generator("sentences", self.options.seed, epoch)
        order = torch.randperm(train.count, generator=generator).to(self.workers.device)
        for step in range(first, self.steps_per_epoch):
            yield train.taken(places_of_step(order, step, share, self.workers))

    def examples(self, split: str) -> Iterator[Batch]:
        """The sentences of a split in their order."""
        mine = slice(self.workers.rank, None, self.workers.count)
        share = self._numbered[split]
        share = Batch(share.numbers[mine], share.labels[mine])
        for begin in range(0, share.count, _TEST_BATCH):
            yield share.taken(slice(begin, begin + _TEST_BATCH))

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """The numbers of the words."""
        return {"numbers": batch.numbers}

    def judged(self, predicted: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and hits."""
        return judged_classes(predicted, batch.labels)

    def loss(self, predicted: Tensor, batch: Batch) -> StepLoss:
        """Cross-entropy."""
        mean = nn.functional.cross_entropy(predicted, batch.labels)
        return StepLoss(
            mean, {**sums_of(predicted.detach(), batch.labels), "loss": mean.detach() * batch.count}
        )

    def measured(self, predicted: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and hits."""
        return sums_of(predicted, batch.labels)

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with its words and classes, and the sentences."""
        assert isinstance(model, models.AbstractSentenceClassifier)  # noqa: S101 - what ``model`` made
        known, _ = self.data
        return {
            "model": {
                "name": self.options.model,
                "configuration": model.configuration(),
                "class_names": list(known.class_names),
                "words": list(self.vocabulary.words),
                "longest": self._longest,
            },
            "data": {
                "name": known.name,
                "note": self.summary(self.data).note,
                **{f"{name}_sentences": len(split) for name, split in self._splits.items()},
                **self.fingerprints(),
            },
            "notes": [],
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the sentences that are trained, validated and tested on."""
        return {f"{name}_sentences_sha256": split.digest for name, split in self._splits.items()}

    def _as_batch(self, split: Sentences) -> Batch:
        numbers = self.vocabulary.numbers(split.words, longest=self._longest)
        labels = torch.tensor(split.labels, dtype=torch.int64)
        return Batch(numbers.to(self.workers.device), labels.to(self.workers.device))
