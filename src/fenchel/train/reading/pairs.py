"""The classification of pairs of sentences, and how related they are: what the loop does not know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.data import LabelledPairs, Splits, load_labelled_pairs
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import TOKENIZER_FILE
from fenchel.errors import InputError
from fenchel.models.relatedness import degree_distribution, expected_degree
from fenchel.train.classification import ACCURACY, JUDGED, judged_classes, sums_of
from fenchel.train.held_out import parts_of
from fenchel.train.metric import Metric
from fenchel.train.reading.embedding import Embedding
from fenchel.train.reading.options import PairsOptions
from fenchel.train.reading.relatedness import MOMENTS, moments_of, pearson, rank_correlation
from fenchel.train.reading.sentences import checked_splits, notes_of_cut, summary_of
from fenchel.train.reading.texts import Words
from fenchel.train.registry import registered
from fenchel.train.sharing import places_of_step, share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task
from fenchel.train.workers import Workers

__all__ = ["PairBatch", "PairReading"]

_TEST_BATCH = 250


@dataclass(frozen=True)
class PairBatch:
    """A process's share of some pairs, on its device.

    Attributes:
        premises: Their words.
        hypotheses: Likewise.
        labels: (b,), int64.
        degrees: Relatedness from 1 to 5, (b,), or None.
    """

    premises: Words
    hypotheses: Words
    labels: Tensor
    degrees: Tensor | None

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return len(self.labels)

    def taken(self, places: Tensor) -> PairBatch:
        """Some of them."""
        degrees = None if self.degrees is None else self.degrees[places]
        pair = (self.premises.taken(places), self.hypotheses.taken(places))
        return PairBatch(*pair, self.labels[places], degrees)


@registered
class PairReading(Task[PairsOptions, Splits[LabelledPairs], PairBatch]):
    """A classifier of pairs of sentences whose words attend to each other.

    The weights of the epoch with the best validation accuracy are kept; the test is read once, with them. Where the
    data say how related pairs are, the model learns that as well, as a distribution over 1 to 5.
    """

    name = "pairs"
    models = ("pairs",)
    unit = "pairs"
    options_type = PairsOptions
    metrics = (
        Metric("loss", "nats", higher_is_better=False, least=0.0),
        ACCURACY,
        Metric("pearson", "correlation of relatedness", higher_is_better=True, least=-1.0, most=1.0),
        Metric("squared_error", "of relatedness, mean", higher_is_better=False, least=0.0),
    )
    headline = "accuracy"
    trained = ("loss", "accuracy")
    watched = "validation"
    selects = "accuracy"
    judges = JUDGED
    only_tested = (
        Metric(
            "spearman", "correlation of ranks of relatedness", higher_is_better=True, least=-1.0, most=1.0
        ),
    )
    summed = ("loss", "accuracy", *MOMENTS)
    kept = ("degree", "true_degree")

    def __init__(self, options: PairsOptions, data: Splits[LabelledPairs], workers: Workers) -> None:
        data = checked_splits(data, LabelledPairs)
        super().__init__(options, data, workers)
        self._parts = parts_of(data, options.train_sentences, self.unit, classes="labels")
        _check_related(data)
        self._share = share_of_batch(options.batch_size, len(self._parts["train"]), workers, self.unit)
        train = self._parts["train"]
        self.embedding = Embedding.of(options, [*train.premises, *train.hypotheses])
        self._texts, self._cut = {}, {}
        for name, part in self._parts.items():
            where = f"{train.name}, {name}"
            premises, cut = self.embedding.texts(part.premises, f"{where}, premises")
            hypotheses, also = self.embedding.texts(part.hypotheses, f"{where}, hypotheses")
            self._texts[name] = premises, hypotheses
            if cut or also:
                self._cut[name] = cut + also
        self._labels = {
            name: torch.tensor(part.labels, dtype=torch.int64) for name, part in self._parts.items()
        }
        self._degrees = {
            name: torch.tensor(part.relatedness) if self._learns_relatedness else None
            for name, part in self._parts.items()
        }

    @property
    def _learns_relatedness(self) -> bool:
        return self.options.relatedness > 0 and self.data.train.relatedness is not None

    @classmethod
    def read(cls, data: str) -> Splits[LabelledPairs]:
        """The pairs of a name or path."""
        return load_labelled_pairs(data)

    @classmethod
    def summary(cls, data: Splits[LabelledPairs]) -> DataSummary:
        """How many pairs there are, and which."""
        return summary_of(data)

    def model(self) -> nn.Module:
        """A classifier with these words and labels."""
        return models.Pairs(
            **self.embedding.sizes,
            classes=len(self._parts["train"].class_names),
            answers="both" if self._learns_relatedness else "labels",
            **self.options.model_arguments,
        )

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._parts["train"]) // (self._share * self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[PairBatch]:
        """The pairs in an order of their own every epoch."""
        generator = seeded_generator("pairs of sentences", self.options.seed, epoch)
        order = torch.randperm(len(self._parts["train"]), generator=generator)
        for step in range(first, self.steps_per_epoch):
            yield self._batch("train", places_of_step(order, step, self._share, self.workers))

    def examples(self, split: str) -> Iterator[PairBatch]:
        """The pairs of a split in their order."""
        mine = torch.arange(len(self._parts[split]))[self.workers.rank :: self.workers.count]
        for places in mine.split(_TEST_BATCH):
            yield self._batch(split, places)

    def _batch(self, split: str, places: Tensor) -> PairBatch:
        device = self.workers.device
        premises, hypotheses = (texts.taken(places).to(device) for texts in self._texts[split])
        degrees = self._degrees[split]
        return PairBatch(
            premises,
            hypotheses,
            self._labels[split][places].to(device),
            None if degrees is None else degrees[places].to(device),
        )

    def inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        """What the model is given, by name."""
        found = {
            "premises": batch.premises.words,
            "hypotheses": batch.hypotheses.words,
            "premise_padding": batch.premises.padding,
            "hypothesis_padding": batch.hypotheses.padding,
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def loss(self, predicted: dict[str, Tensor], batch: PairBatch) -> StepLoss:
        """Cross-entropy of labels, smoothed, and Kullback and Leibler's of relatedness, in their shares."""
        labels = nn.functional.cross_entropy(
            predicted["labels"], batch.labels, label_smoothing=self.options.label_smoothing
        )
        mean = self._weighed(labels, predicted, batch, "mean")
        sums = sums_of(predicted["labels"].detach(), batch.labels)
        return StepLoss(mean, {**sums, "loss": mean.detach() * batch.count})

    def measured(self, predicted: dict[str, Tensor], batch: PairBatch) -> dict[str, Tensor]:
        """The loss, hits, the moments from which correlation and error of relatedness follow, and what was said."""
        sums = sums_of(predicted["labels"], batch.labels)
        loss = self._weighed(sums["loss"], predicted, batch, "sum")
        if batch.degrees is None:
            moments = {name: torch.zeros(()) for name in MOMENTS}
        else:
            said = expected_degree(predicted["relatedness"])
            moments = {**moments_of(said, batch.degrees), "degree": said, "true_degree": batch.degrees}
        return {**sums, **moments, "loss": loss}

    def judged(self, predicted: dict[str, Tensor], batch: PairBatch) -> dict[str, Tensor]:
        """Cross-entropy and hit of each pair, of labels."""
        return judged_classes(predicted["labels"], batch.labels)

    def _weighed(self, labels: Tensor, predicted: dict[str, Tensor], batch: PairBatch, over: str) -> Tensor:
        if batch.degrees is None:
            return labels
        share = self.options.relatedness
        found = nn.functional.kl_div(
            predicted["relatedness"].log_softmax(-1), degree_distribution(batch.degrees), reduction="none"
        ).sum(-1)
        return (1 - share) * labels + share * (found.mean() if over == "mean" else found.sum())

    @classmethod
    def evaluated(cls, sums: Mapping[str, float], count: float) -> dict[str, float]:
        """The metrics by name; those of relatedness where it was learned."""
        found = {name: sums[name] / count for name in ("loss", "accuracy")}
        if sums["scored"]:
            found |= {"pearson": pearson(sums), "squared_error": sums["squared_difference"] / sums["scored"]}
        return found

    @classmethod
    def compared(cls, kept: Mapping[str, Tensor]) -> dict[str, float]:
        """Spearman's correlation of relatedness, where it was learned."""
        return {"spearman": rank_correlation(kept["degree"], kept["true_degree"])} if kept else {}

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with its labels, and the pairs."""
        assert isinstance(model, models.Pairs)  # noqa: S101 - what ``model`` made
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
                **{f"{name}_pairs": len(part) for name, part in self._parts.items()},
                **self.fingerprints(),
            },
            "notes": notes_of_cut(self._cut, "sentences", self.options.longest),
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the pairs that are trained, validated and tested on, and of a frozen encoder."""
        pairs = {f"{name}_pairs_sha256": part.digest for name, part in self._parts.items()}
        return {**pairs, **self.embedding.fingerprints}

    def files(self) -> Mapping[str, str]:
        """The tokenizer."""
        return {TOKENIZER_FILE: self.embedding.subwords.text}


def _check_related(data: Splits[LabelledPairs]) -> None:
    """Refuse parts of which some say how related their pairs are, and some do not."""
    for part in (data.validation, data.test):
        if part is not None and (part.relatedness is None) != (data.train.relatedness is None):
            raise InputError(
                f"{part.name}: some of the pairs to train, validate and test on say how related they are, and some do "
                "not; expected all or none."
            )
