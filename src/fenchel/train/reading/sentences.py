"""The classification of sentences by a model that asks them a question: what the loop does not know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.arguments import shown
from fenchel.data import Sentences, Splits, load_labelled_sentences
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import TOKENIZER_FILE
from fenchel.errors import InputError
from fenchel.train.classification import ACCURACY, JUDGED, LOSS, judged_classes, sums_of
from fenchel.train.held_out import parts_of
from fenchel.train.reading.embedding import Embedding
from fenchel.train.reading.options import ClassifierOptions
from fenchel.train.reading.texts import Words
from fenchel.train.registry import registered
from fenchel.train.sharing import places_of_step, share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task
from fenchel.train.workers import Workers

__all__ = ["SentenceBatch", "SentenceReading"]

_TEST_BATCH = 250


@dataclass(frozen=True)
class SentenceBatch:
    """A process's share of some sentences, on its device.

    Attributes:
        words: Their words.
        labels: (b,), int64.
    """

    words: Words
    labels: Tensor

    @property
    def count(self) -> int:
        """How many sentences there are."""
        return len(self.labels)

    def taken(self, places: Tensor) -> SentenceBatch:
        """Some of them."""
        return SentenceBatch(self.words.taken(places), self.labels[places])


@registered
class SentenceReading(Task[ClassifierOptions, Splits[Sentences], SentenceBatch]):
    """A classifier of sentences that asks a learned question of them.

    Where the data have no part to validate on, a tenth of the sentences to train on is held out, the same for every
    seed. The weights of the epoch with the best validation accuracy are kept; the test is read once, with them.
    """

    name = "classifier"
    models = ("classifier",)
    unit = "sentences"
    options_type = ClassifierOptions
    metrics = (LOSS, ACCURACY)
    headline = "accuracy"
    trained = ("loss", "accuracy")
    watched = "validation"
    selects = "accuracy"
    judges = JUDGED

    def __init__(self, options: ClassifierOptions, data: Splits[Sentences], workers: Workers) -> None:
        data = checked_splits(data, Sentences)
        super().__init__(options, data, workers)
        self._parts = parts_of(data, options.train_sentences, self.unit)
        spoken = {name: [" ".join(one) for one in part.words] for name, part in self._parts.items()}
        self._share = share_of_batch(options.batch_size, len(self._parts["train"]), workers, self.unit)
        self.embedding = Embedding.of(options, spoken["train"])
        read = {
            name: self.embedding.texts(texts, f"{data.train.name}, {name}") for name, texts in spoken.items()
        }
        self._texts = {name: texts for name, (texts, _) in read.items()}
        self._cut = {name: cut for name, (_, cut) in read.items() if cut}
        self._labels = {
            name: torch.tensor(part.labels, dtype=torch.int64) for name, part in self._parts.items()
        }

    @classmethod
    def read(cls, data: str) -> Splits[Sentences]:
        """The sentences of a name or path."""
        return load_labelled_sentences(data)

    @classmethod
    def summary(cls, data: Splits[Sentences]) -> DataSummary:
        """How many sentences there are, and which."""
        return summary_of(data)

    def model(self) -> nn.Module:
        """A classifier with these words and classes."""
        return models.Classifier(
            **self.embedding.sizes,
            classes=len(self._parts["train"].class_names),
            longest=self.options.longest,
            **self.options.model_arguments,
        )

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._parts["train"]) // (self._share * self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[SentenceBatch]:
        """The sentences in an order of their own every epoch."""
        generator = seeded_generator("sentences", self.options.seed, epoch)
        order = torch.randperm(len(self._parts["train"]), generator=generator)
        for step in range(first, self.steps_per_epoch):
            yield self._batch("train", places_of_step(order, step, self._share, self.workers))

    def examples(self, split: str) -> Iterator[SentenceBatch]:
        """The sentences of a split in their order."""
        mine = torch.arange(len(self._parts[split]))[self.workers.rank :: self.workers.count]
        for places in mine.split(_TEST_BATCH):
            yield self._batch(split, places)

    def _batch(self, split: str, places: Tensor) -> SentenceBatch:
        device = self.workers.device
        words = self._texts[split].taken(places).to(device)
        return SentenceBatch(words, self._labels[split][places].to(device))

    def inputs(self, batch: SentenceBatch) -> dict[str, Tensor]:
        """What the model is given, by name."""
        found = {"words": batch.words.words, "padding": batch.words.padding}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def loss(self, predicted: Tensor, batch: SentenceBatch) -> StepLoss:
        """Cross-entropy, with the label smoothed."""
        mean = nn.functional.cross_entropy(
            predicted, batch.labels, label_smoothing=self.options.label_smoothing
        )
        return StepLoss(
            mean, {**sums_of(predicted.detach(), batch.labels), "loss": mean.detach() * batch.count}
        )

    def measured(self, predicted: Tensor, batch: SentenceBatch) -> dict[str, Tensor]:
        """Cross-entropy and hits."""
        return sums_of(predicted, batch.labels)

    def judged(self, predicted: Tensor, batch: SentenceBatch) -> dict[str, Tensor]:
        """Cross-entropy and hit of each sentence."""
        return judged_classes(predicted, batch.labels)

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with its classes, and the sentences."""
        assert isinstance(model, models.Classifier)  # noqa: S101 - what ``model`` made
        known = self.data.train
        return {
            "model": {
                "name": self.options.model,
                "configuration": model.configuration(),
                "class_names": list(known.class_names),
                "embed": self.options.embed,
                "longest": self.options.longest,
            },
            "data": {
                "name": known.name,
                "note": self.summary(self.data).note,
                **{f"{name}_sentences": len(part) for name, part in self._parts.items()},
                **self.fingerprints(),
            },
            "notes": notes_of_cut(self._cut, self.unit, self.options.longest),
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the sentences that are trained, validated and tested on, and of a frozen encoder."""
        sentences = {f"{name}_sentences_sha256": part.digest for name, part in self._parts.items()}
        return {**sentences, **self.embedding.fingerprints}

    def files(self) -> Mapping[str, str]:
        """The tokenizer."""
        return {TOKENIZER_FILE: self.embedding.subwords.text}


def checked_splits(data: Any, kind: type) -> Splits[Any]:
    """Splits of a kind; of a pair, its parts to train and to test on.

    Raises:
        InputError: Naming what was given.
    """
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        data = Splits(data[0], data[1] if len(data) == 3 else None, data[-1])
    if (
        isinstance(data, Splits)
        and all(isinstance(part, kind) for part in (data.train, data.test))
        and isinstance(data.validation, kind | None)
    ):
        return data
    raise InputError(
        f"data is {shown(data)}; expected fenchel.data.Splits of {kind.__name__}: to train, to validate and to test "
        "on, or a pair without those to validate on."
    )


def summary_of(data: Splits[Any]) -> DataSummary:
    """How many examples there are, and which."""
    parts = [part for part in (data.train, data.validation, data.test) if part is not None]
    digest = hashlib.sha256(" ".join(part.digest for part in parts).encode()).hexdigest()
    note = "; ".join(dict.fromkeys(part.note for part in parts if part.note))
    return DataSummary(len(data.train), len(data.test), len(data.train.class_names), note, digest)


def notes_of_cut(cut: Mapping[str, int], unit: str, longest: int) -> list[str]:
    """A sentence for each part of the data of which some were too long."""
    return [f"{count:,} {unit} of {name} are cut after {longest} tokens." for name, count in cut.items()]
