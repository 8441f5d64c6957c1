"""The fine-tuning of a model that fills in blanks, on sentences and their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.data import Sentences, Splits, load_labelled_sentences
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import TOKENIZER_FILE, Subwords
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.classification import ACCURACY, JUDGED, LOSS, judged_classes, sums_of
from fenchel.train.cloze.fine_tuning_options import FineTuningOptions
from fenchel.train.cloze.pretrained import Pretrained, extended
from fenchel.train.cloze.rows import SPECIAL
from fenchel.train.held_out import parts_of
from fenchel.train.reading.sentences import checked_splits, notes_of_cut, summary_of
from fenchel.train.registry import registered
from fenchel.train.sharing import places_of_step, share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task
from fenchel.train.workers import Workers

__all__ = ["FineTuning"]

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
class FineTuning(Task[FineTuningOptions, Splits[Sentences], Batch]):
    """A classifier of sentences that was trained to fill in blanks before.

    Where the data have no part to validate on, a tenth of the sentences to train on is held out, the same for every
    seed. The weights of the epoch with the best validation accuracy are kept; the test is read once, with them.
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

    def __init__(self, options: FineTuningOptions, data: Splits[Sentences], workers: Workers) -> None:
        data = checked_splits(data, Sentences)
        super().__init__(options, data, workers)
        self._splits = parts_of(data, options.train_sentences, self.unit)
        self._pretrained = Pretrained.read(options.pretrained)
        tokenizer = self._pretrained.tokenizer
        if options.words == "extended":
            tokenizer = extended(tokenizer, map(" ".join, self._splits["train"].words))
        self.tokenizer, self._room = tokenizer, self._pretrained.configuration["longest"] - _AROUND
        encoded = {
            name: tokenizer.encoded([" ".join(words) for words in split.words])
            for name, split in self._splits.items()
        }
        self._cut = {name: sum(len(line) > self._room for line in lines) for name, lines in encoded.items()}
        start, end = map(tokenizer.number, SPECIAL[:2])
        self._numbers = {
            name: [[start, *line[: self._room], end] for line in lines] for name, lines in encoded.items()
        }
        self._share = share_of_batch(options.batch_size, len(self._splits["train"]), workers, self.unit)

    @classmethod
    def read(cls, data: str) -> Splits[Sentences]:
        """The sentences of a name or path."""
        return load_labelled_sentences(data)

    @classmethod
    def summary(cls, data: Splits[Sentences]) -> DataSummary:
        """How many sentences there are, and which."""
        return summary_of(data)

    @classmethod
    def rebuilt(cls, description: Mapping[str, Any]) -> nn.Module:
        """The model without weights, from its configuration."""
        return models.build("cloze", **description["configuration"])

    def model(self) -> nn.Module:
        """The pretrained model with these words and classes."""
        classes = len(self.data.train.class_names)
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
            yield self._batch("train", places_of_step(order, step, self._share, self.workers))

    def examples(self, split: str) -> Iterator[Batch]:
        """The sentences of a split in their order."""
        mine = list(range(self.workers.rank, len(self._splits[split]), self.workers.count))
        for begin in range(0, len(mine), _TEST_BATCH):
            yield self._batch(split, mine[begin : begin + _TEST_BATCH])

    def _batch(self, split: str, places: list[int]) -> Batch:
        numbers = Subwords.padded([self._numbers[split][place] for place in places])
        labels = torch.tensor([self._splits[split].labels[place] for place in places], dtype=torch.int64)
        return Batch(numbers.to(self.workers.device), labels.to(self.workers.device))

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
        known = self.data.train
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
            "notes": notes_of_cut(
                {name: cut for name, cut in self._cut.items() if cut}, self.unit, self._room
            ),
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
