"""The captioning of images: what the loop does not know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.arguments import shown
from fenchel.data.captioned_images import CaptionedImages, as_input, parted
from fenchel.data.coco_mini import load_captions
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import TOKENIZER_FILE, Subwords
from fenchel.errors import InputError
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.bleu import BLEU, BLEU_SUMS, bleu_of_sums, bleu_signature, bleu_sums
from fenchel.train.captions.objective import cross_entropies, objective
from fenchel.train.captions.options import CaptionOptions
from fenchel.train.metric import Metric
from fenchel.train.registry import registered
from fenchel.train.sharing import share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task
from fenchel.train.workers import Workers

__all__ = ["BEGIN", "END", "NEVER_SAID", "Batch", "Captioning"]

BEGIN = "[BOS]"
"""What stands before a caption."""

END = "[EOS]"
"""What stands after it."""

NEVER_SAID = (0, 1, 2)
"""Numbers that no caption has: padding, what is not known, and what stands before it."""

_TEST_BATCH = 100
_MEMORY = (
    "All images were trained on, validated on and tested on: what was measured is memory, and nothing else."
)


@dataclass(frozen=True)
class Batch:
    """A process's share of some captions, on its device.

    Attributes:
        images: The image of each (b, 3, size, size).
        words: The words so far (b, m), 0 for padding.
        targets: The words that come next (b, m).
        draws: Numbers with which hard attention draws its cells (b, m), of those that are trained on.
        step_words: How many words the captions of all processes have together, of those that are trained on.
        references: For those that are evaluated on, all captions of the images whose first captions are here, by
            place in the batch.
    """

    images: Tensor
    words: Tensor
    targets: Tensor
    draws: Tensor | None = None
    step_words: int = 0
    references: Mapping[int, tuple[str, ...]] | None = None

    @property
    def count(self) -> int:
        """How many captions there are."""
        return len(self.words)

    def taken(self, places: Tensor) -> Batch:
        """Some of them."""
        return Batch(self.images[places], self.words[places], self.targets[places])


@registered
class Captioning(Task[CaptionOptions, CaptionedImages, Batch]):
    """A captioner of images. An example is a caption; splits are of images, each with all of its captions.

    The pieces of words are those of the captions that are trained on. The epoch of the lowest cross-entropy on images
    that are held out is kept; where none are, on those that are trained on.
    """

    name = "captions"
    models = ("captioner",)
    unit = "captions"
    options_type = CaptionOptions
    metrics = (
        Metric("loss", "cross-entropy in nats a piece of a word", higher_is_better=False, least=0.0),
        BLEU,
    )
    headline = "loss"
    watched = "validation"
    selects = "loss"
    judges = MappingProxyType({"loss": "cross-entropy a piece of a word", "score": "pieces foretold rightly"})
    summed = ("nats", "words", *BLEU_SUMS)

    def __init__(self, options: CaptionOptions, data: CaptionedImages, workers: Workers) -> None:
        if not isinstance(data, CaptionedImages):
            raise InputError(f"data is {shown(data)}; expected CaptionedImages.")
        super().__init__(options, data, workers)
        self._splits = parted(data, options.held_out, options.train_images)
        train = self._splits["train"]
        self.tokenizer = Subwords.learned(
            (text for texts in train.captions for text in texts),
            size=options.words,
            lower=True,
            special=(BEGIN, END),
        )
        self._begin, self._end = self.tokenizer.number(BEGIN), self.tokenizer.number(END)
        self._pixels = {
            name: as_input(split.images, options.image_size).to(workers.device)
            for name, split in self._splits.items()
        }
        numbered = {name: self._numbered(split) for name, split in self._splits.items()}
        self._captions = {name: rows for name, (rows, _) in numbered.items()}
        self._cut = {name: cut for name, (_, cut) in numbered.items()}
        self._flat = [(image, row) for image, rows in enumerate(self._captions["train"]) for row in rows]
        self._share = share_of_batch(options.batch_size, len(self._flat), workers, self.unit)

    @classmethod
    def read(cls, data: str) -> CaptionedImages:
        """The images of a name or path, with their captions."""
        return load_captions(data)

    @classmethod
    def summary(cls, data: CaptionedImages) -> DataSummary:
        """How many captions there are, and which; the options decide how many of them are tested on."""
        count = sum(map(len, data.captions))
        return DataSummary(count, count, None, data.note, data.digest)

    def model(self) -> nn.Module:
        """A captioner with these words."""
        options = self.options
        return models.build(
            "captioner",
            vocabulary=len(self.tokenizer),
            image_size=options.image_size,
            width=options.width,
            depth=options.depth,
            attention=options.attention,
            gradient=options.gradient or "reinforce",
            preference=options.preference,
            estimator=options.estimator or "first_order",
            alpha=options.alpha,
            closeness=options.closeness,
            gate=options.gate,
            baseline_decay=options.baseline_decay,
            dropout=options.dropout,
        )

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._flat) // (self._share * self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The captions in an order of their own every epoch."""
        generator = seeded_generator("caption order", self.options.seed, epoch)
        order = torch.randperm(len(self._flat), generator=generator).tolist()
        size, share = self._share * self.workers.count, self._share
        for step in range(first, self.steps_per_epoch):
            whole = [self._flat[place] for place in order[step * size : (step + 1) * size]]
            mine = slice(self.workers.rank * share, (self.workers.rank + 1) * share)
            yield self._batch(
                "train",
                whole[mine],
                draws=self._draws(epoch, step, size)[mine],
                step_words=sum(len(row) - 1 for _, row in whole),
            )

    def examples(self, split: str) -> Iterator[Batch]:
        """The captions of a split, those of an image after each other."""
        rows, said = self._captions[split], self._splits[split].captions
        mine = range(self.workers.rank, len(rows), self.workers.count)
        pairs: list[tuple[int, list[int]]] = []
        references: dict[int, tuple[str, ...]] = {}
        for image in mine:
            references[len(pairs)] = said[image]
            pairs += [(image, row) for row in rows[image]]
            if len(pairs) >= _TEST_BATCH:
                yield self._batch(split, pairs, references=references)
                pairs, references = [], {}
        if pairs:
            yield self._batch(split, pairs, references=references)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the model is called with."""
        given = {"images": batch.images, "words": batch.words, "targets": batch.targets}
        return given if batch.draws is None else {**given, "draws": batch.draws}

    def loss(self, predicted: Any, batch: Batch) -> StepLoss:
        """The objective a word, of all words of the step; ``loss`` is its cross-entropy alone."""
        options, processes = self.options, self.workers.count
        total = objective(
            predicted, batch.targets, coverage=options.coverage or 0.0, entropy=options.entropy or 0.0
        )
        nats = cross_entropies(predicted["logits"].detach(), batch.targets).sum()
        # Processes average their gradients, so that each counts its own share as often as there are processes.
        share = processes / batch.step_words
        return StepLoss(total * share, {"loss": nats * share * batch.count})

    def examined(self, model: nn.Module, batch: Batch, split: str) -> Mapping[str, Tensor]:
        """Cross-entropy, and BLEU of what the model says greedily of each image."""
        sums = dict(super().examined(model, batch, split))
        assert batch.references is not None  # noqa: S101 - examples have them
        assert isinstance(model, models.Captioner)  # noqa: S101 - what ``model`` made
        found = model.captions(
            batch.images[list(batch.references)],
            begin=self._begin,
            end=self._end,
            longest=self.options.longest,
            never=NEVER_SAID,
        )
        said = [self.tokenizer.decoded(one.words) for one in found]
        scored = bleu_sums(said, list(batch.references.values()), lower=True)
        return {**sums, **{name: torch.tensor(value) for name, value in scored.items()}}

    def judged(self, predicted: Any, batch: Batch) -> dict[str, Tensor]:
        """The mean cross-entropy of each caption, and the share of its pieces that are the likeliest."""
        real = batch.targets != 0
        words = real.sum(1)
        right = (predicted["logits"].argmax(-1) == batch.targets) & real
        return {
            "loss": cross_entropies(predicted["logits"], batch.targets).sum(1) / words,
            "score": right.sum(1) / words,
        }

    def measured(self, predicted: Any, batch: Batch) -> dict[str, Tensor]:
        """The sum of cross-entropies, and of how many words."""
        nats = cross_entropies(predicted["logits"], batch.targets).sum()
        return {"nats": nats, "words": (batch.targets != 0).sum()}

    @classmethod
    def evaluated(cls, sums: Mapping[str, float], count: float) -> dict[str, float]:
        """The mean a word, and BLEU of all images together."""
        return {"loss": sums["nats"] / sums["words"], "bleu": bleu_of_sums(sums)}

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with what its input is made of, the images, and what they are too few for."""
        assert isinstance(model, models.Captioner)  # noqa: S101 - what ``model`` made
        counts = {
            f"{name}_{unit}": count
            for name, split in self._splits.items()
            for unit, count in (("images", len(split)), ("captions", sum(map(len, split.captions))))
        }
        most = max(len(texts) for texts in self._splits["test"].captions)
        return {
            "model": {
                "name": "captioner",
                "configuration": model.configuration(),
                "longest": self.options.longest,
                "note": f"{self.data.name}: {self.data.note}" if self.data.note else "",
                "coverage": self.options.coverage,
            },
            "data": {"name": self.data.name, "note": self.data.note, **counts, **self.fingerprints()},
            "notes": [
                *([f"{self.data.note.rstrip('.')}."] if self.data.note else []),
                *([_MEMORY] if self.options.held_out == 0 else []),
                *self._said_of_cuts(),
                "BLEU of greedy captions against all captions of an image: "
                f"{bleu_signature(lower=True, references=most)}.",
            ],
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the images and captions of every split, and of the pieces of words."""
        splits = {f"{name}_captions_sha256": split.digest for name, split in self._splits.items()}
        return {**splits, "tokenizer_sha256": digest_of_bytes(self.tokenizer.text.encode())}

    def files(self) -> dict[str, str]:
        """The tokenizer."""
        return {TOKENIZER_FILE: self.tokenizer.text}

    def _said_of_cuts(self) -> list[str]:
        cut = {name: count for name, count in self._cut.items() if count}
        if not cut:
            return []
        counted = ", ".join(f"{count} of {name}" for name, count in cut.items())
        return [f"Captions longer than {self.options.longest} pieces were cut there: {counted}."]

    def _numbered(self, split: CaptionedImages) -> tuple[list[list[list[int]]], int]:
        """The captions of each image with what stands around them, and how many were cut."""
        longest, cut = self.options.longest, 0
        rows: list[list[list[int]]] = []
        for texts in split.captions:
            encoded = [[self._begin, *row, self._end] for row in self.tokenizer.encoded(texts)]
            cut += sum(len(row) > longest + 1 for row in encoded)
            rows.append([row[: longest + 1] for row in encoded])
        return rows, cut

    def _draws(self, epoch: int, step: int, size: int) -> Tensor:
        """Of a whole step, so that they do not depend on how many processes share it, nor on padding."""
        generator = seeded_generator("cells", self.options.seed, epoch, step)
        return torch.rand(size, self.options.longest, generator=generator)

    def _batch(
        self,
        split: str,
        pairs: list[tuple[int, list[int]]],
        *,
        draws: Tensor | None = None,
        step_words: int = 0,
        references: Mapping[int, tuple[str, ...]] | None = None,
    ) -> Batch:
        device = self.workers.device
        words = Subwords.padded([row[:-1] for _, row in pairs]).to(device)
        targets = Subwords.padded([row[1:] for _, row in pairs]).to(device)
        images = self._pixels[split][[image for image, _ in pairs]]
        if draws is not None:
            draws = draws[:, : words.shape[1]].to(device)
        return Batch(images, words, targets, draws, step_words, references)
