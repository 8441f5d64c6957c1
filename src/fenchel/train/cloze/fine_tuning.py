"""The fine-tuning of a model that fills in blanks, on sentences and their classes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.data import Sentences, load_sentences
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import TOKENIZER_FILE, Subwords
from fenchel.errors import InputError
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.classification import ACCURACY, JUDGED, LOSS, judged_classes, sums_of
from fenchel.train.cloze.fine_tuning_options import FineTuningOptions
from fenchel.train.cloze.pretrained import Pretrained, extended
from fenchel.train.cloze.rows import SPECIAL
from fenchel.train.registry import registered
from fenchel.train.task import DataSummary, StepLoss, Task, check_pair
from fenchel.train.workers import Workers

__all__ = ["FineTuning"]

Splits = tuple[Sentences, Sentences]

_VALIDATED = 0.1
_SPLIT_SEED = 0
_TEST_BATCH = 250
_AROUND = 2  # special tokens of a row


@dataclass(frozen=True)
class Batch:
    """A process's share of some sentences, on its device.

    Attributes:
        numbers: Of the tokens (b, n), 0 for padding.
        labels: (b,), int64.
    """

    numbers: Tensor
    labels: Tensor

    @property
    def count(self) -> int:
        """How many sentences there are."""
        return len(self.labels)

    def taken(self, places: Tensor) -> Batch:
        """Some of them, as wide as the longest needs."""
        numbers = self.numbers[places]
        return Batch(numbers[:, : int((numbers != 0).sum(1).max())], self.labels[places])


@registered
class FineTuning(Task[FineTuningOptions, Splits, Batch]):
    """A classifier of sentences that was trained to fill in blanks before.

    A tenth of the sentences to train on, the same for every seed, is kept to validate on after epochs. The test is read
    once, after the last epoch.
    """

    name = "cloze-classification"
    models = ("cloze-classifier",)
    unit = "sentences"
    options_type = FineTuningOptions
    metrics = (LOSS, ACCURACY)
    headline = "accuracy"
    selects = "accuracy"
    trained = ("loss", "accuracy")
    judges = JUDGED
    watched = "validation"

    def __init__(self, options: FineTuningOptions, data: Splits, workers: Workers) -> None:
        check_pair(data, Sentences)
        super().__init__(options, data, workers)
        known, test = data
        if known.class_names != test.class_names:
            raise InputError(
                f"{known.name}: sentences to train and to test on differ in their classes, {known.class_names} and "
                f"{test.class_names}; expected the same. Give two splits of the same data."
            )
        if options.batch_size % workers.count:
            raise InputError(
                f"batch size is {options.batch_size} for {workers.count} processes; it must be a multiple of "
                f"{workers.count}, so that each has as many sentences."
            )
        train, validation = _parted(known, options.train_sentences)
        self._splits = {"train": train, "validation": validation, "test": test}
        self._pretrained = Pretrained.read(options.pretrained)
        tokenizer = self._pretrained.tokenizer
        if options.words == "extended":
            tokenizer = extended(tokenizer, map(" ".join, train.words))
        self.tokenizer = tokenizer
        self._numbers = {name: self._numbered(split) for name, split in self._splits.items()}
        self._share = min(options.batch_size, len(train)) // workers.count
        if self._share == 0:
            raise InputError(
                f"there are {len(train)} sentences to train on for {workers.count} processes; every process needs one. "
                "Give more sentences or start fewer processes."
            )

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

    @classmethod
    def rebuilt(cls, description: Mapping[str, Any]) -> nn.Module:
        """The model without weights, from its configuration."""
        return models.build("cloze", **description["configuration"])

    def model(self) -> nn.Module:
        """The pretrained model with these words and classes."""
        classes = len(self.data[0].class_names)
        model = self._pretrained.classifier(len(self.tokenizer), classes, self.options.dropout)
        if self.options.weights == "pretrained":
            self._pretrained.give(model)
        return model

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._splits["train"]) // (self._share * self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The sentences in an order of their own every epoch."""
        generator = seeded_generator("sentences", self.options.seed, epoch)
        order = torch.randperm(len(self._splits["train"]), generator=generator).tolist()
        for step in range(first, self.steps_per_epoch):
            begin = (step * self.workers.count + self.workers.rank) * self._share
            yield self._batch("train", order[begin : begin + self._share])

    def examples(self, split: str) -> Iterator[Batch]:
        """The sentences of a split in their order."""
        mine = list(range(self.workers.rank, len(self._splits[split]), self.workers.count))
        for begin in range(0, len(mine), _TEST_BATCH):
            yield self._batch(split, mine[begin : begin + _TEST_BATCH])

    def _batch(self, split: str, places: list[int]) -> Batch:
        numbers = Subwords.padded([self._numbers[split][place] for place in places])
        labels = torch.tensor([self._splits[split].labels[place] for place in places], dtype=torch.int64)
        return Batch(numbers.to(self.workers.device), labels.to(self.workers.device))

    def _numbered(self, split: Sentences) -> list[list[int]]:
        start, end = map(self.tokenizer.number, SPECIAL[:2])
        room = self._pretrained.configuration["longest"] - _AROUND
        lines = self.tokenizer.encoded([" ".join(words) for words in split.words])
        return [[start, *line[:room], end] for line in lines]

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the model takes of a batch, by name: no place is asked for its word."""
        return {"numbers": batch.numbers, "places": torch.zeros_like(batch.numbers, dtype=torch.bool)}

    def judged(self, predicted: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and hits."""
        return judged_classes(predicted["classes"], batch.labels)

    def loss(self, predicted: dict[str, Tensor], batch: Batch) -> StepLoss:
        """Cross-entropy."""
        mean = nn.functional.cross_entropy(predicted["classes"], batch.labels)
        sums = {
            **sums_of(predicted["classes"].detach(), batch.labels),
            "loss": mean.detach() * batch.count,
        }
        # Nothing, of all weights: processes wait for the gradient of each.
        return StepLoss(mean + predicted["words"].sum(), sums)

    def measured(self, predicted: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and hits."""
        return sums_of(predicted["classes"], batch.labels)

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with its words and classes, and the sentences."""
        assert isinstance(model, models.Cloze)  # noqa: S101 - what ``model`` made
        known, _ = self.data
        return {
            "model": {
                "name": self.options.model,
                "configuration": model.configuration(),
                "class_names": list(known.class_names),
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
        """Of the sentences that are trained, validated and tested on, of the words and of the pretrained weights."""
        return {
            **{f"{name}_sentences_sha256": split.digest for name, split in self._splits.items()},
            "tokenizer_sha256": digest_of_bytes(self.tokenizer.text.encode()),
            "pretrained_sha256": self._pretrained.digest,
        }

    def files(self) -> Mapping[str, str]:
        """The tokenizer."""
        return {TOKENIZER_FILE: self.tokenizer.text}


def _parted(known: Sentences, wanted: int | None) -> Splits:
    """What is trained on and what is validated on: the same for every seed, as other classifiers have it."""
    order = torch.randperm(len(known), generator=seeded_generator("validation", _SPLIT_SEED)).tolist()
    held_out = max(round(_VALIDATED * len(known)), 1)
    rest = order[held_out:]
    if not 1 <= (len(rest) if wanted is None else wanted) <= len(rest):
        raise InputError(
            f"{known.name}: {wanted or 1} sentences to train on were asked for and there are {len(rest)}, besides "
            f"{held_out} to validate on; ask for fewer, or give more."
        )
    return known.taken(rest[:wanted]), known.taken(order[:held_out])
