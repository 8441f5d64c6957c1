"""The filling in of blanks: what the loop does not know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.data.aligned import holds_pairs, load_aligned
from fenchel.data.articles import Articles
from fenchel.data.corruption import Corruption, Shares
from fenchel.data.randomness import seeded_generator
from fenchel.data.subwords import TOKENIZER_FILE
from fenchel.data.wikitext2 import load_articles
from fenchel.errors import InputError
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.classification import LOSS
from fenchel.train.cloze.baselines import NeighbourCounts
from fenchel.train.cloze.options import ClozeOptions
from fenchel.train.cloze.rows import SPECIAL, Batch, Draws, Rows
from fenchel.train.cloze.text import Splits, TrainedText
from fenchel.train.metric import Metric
from fenchel.train.registry import registered
from fenchel.train.sharing import share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task
from fenchel.train.workers import Workers

__all__ = ["ClozeTask"]

_TEST_SEED = 0
_TEST_BATCH = 64
_SPLITS = ("train", "validation", "test")


def _share(name: str, words: str) -> Metric:
    return Metric(name, words, higher_is_better=True, least=0.0, most=1.0)


@registered
class ClozeTask(Task[ClozeOptions, Splits, Batch]):
    """A model that fills in blanks.

    Words that are never chosen are special tokens and what the tokenizer does not know, ``<unk>`` of the text among it.
    What is hidden where it is validated and tested is the same for every seed. The test is read once, after the last
    epoch.
    """

    name = "cloze"
    models = ("cloze",)
    unit = "passages"
    options_type = ClozeOptions
    metrics = (
        LOSS,
        _share("masked_accuracy", "share of the hidden words found"),
        _share("next_accuracy", "share of next sentences told from others"),
        _share("unigram_accuracy", "the same share by the most frequent word"),
        _share("bigram_accuracy", "the same share by the likeliest word between its neighbours"),
    )
    headline = "masked_accuracy"
    selects = "masked_accuracy"
    watched = "validation"
    judges = MappingProxyType(
        {"loss": "cross-entropy of a passage's words", "score": "share of a passage's words found"}
    )
    summed = (
        "loss",
        "hits",
        "places",
        "next_loss",
        "next_hits",
        "pairs",
        "unigram",
        "bigram",
        "baseline_places",
    )

    def __init__(self, options: ClozeOptions, data: Splits, workers: Workers) -> None:
        whole = isinstance(data, tuple | list) and len(data) == len(_SPLITS)
        if not whole or not all(isinstance(part, Articles) for part in data):
            raise InputError("data is no triple of Articles, to train, to validate and to test on.")
        super().__init__(options, data, workers)
        self.tokenizer, self._passages = TrainedText.of(data, options)
        self._rows = {
            name: Rows(held, self.tokenizer, options.objective, options.longest)
            for name, held in self._passages.items()
        }
        self._share = share_of_batch(options.batch_size, len(self._rows["train"]), workers, self.unit)

    @classmethod
    def read(cls, data: str) -> Splits:
        """The text of a name or path."""
        return load_aligned(data) if holds_pairs(data) else load_articles(data)

    @classmethod
    def summary(cls, data: Splits) -> DataSummary:
        """How many articles or pairs there are, and which."""
        train, _, test = data
        digest = hashlib.sha256(" ".join(part.digest for part in data).encode()).hexdigest()
        return DataSummary(len(train), len(test), None, train.note, digest)

    def model(self) -> nn.Module:
        """A model of these words."""
        options = self.options
        asked = ("width", "depth", "heads", "mlp_width", "dropout", "last", "masked", "score")
        asked += ("preference", "layer_preference", "estimator", "alpha", "closeness")
        pairs = len(self.data[0].languages)
        return models.build(
            "cloze",
            vocabulary=len(self.tokenizer),
            longest=(2 if pairs else 1) * options.longest + len(SPECIAL),
            languages=pairs,
            classes=2 if options.objective == "mlm+nsp" else 0,
            mask=self.tokenizer.number("[MASK]"),
            causal=options.objective == "causal",
            **{name: getattr(options, name) for name in asked},
        )

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._rows["train"]) // (self._share * self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The passages in an order of their own every epoch, corrupted anew."""
        rows, size = self._rows["train"], self._share * self.workers.count
        draws = Draws(self._corruption(self.options.shares), "train", (self.options.seed, epoch))
        order = torch.randperm(
            len(rows), generator=seeded_generator("passages", self.options.seed, epoch)
        ).tolist()
        for step in range(first, self.steps_per_epoch):
            mine = slice(self.workers.rank * self._share, (self.workers.rank + 1) * self._share)
            yield rows.batch(order[step * size : (step + 1) * size], mine, draws, self.workers.device)

    def examples(self, split: str) -> Iterator[Batch]:
        """The passages of a split in their order, corrupted as they always are."""
        draws = Draws(self._corruption(self.options.test_shares), split, (_TEST_SEED,))
        mine = range(self.workers.rank, len(self._rows[split]), self.workers.count)
        for begin in range(0, len(mine), _TEST_BATCH):
            indices = mine[begin : begin + _TEST_BATCH]
            yield self._rows[split].batch(indices, slice(None), draws, self.workers.device)

    def _corruption(self, shares: str) -> Corruption:
        return Corruption(
            self.options.rate,
            Shares.of(shares),
            mask=self.tokenizer.number("[MASK]"),
            known=len(self.tokenizer.special),
            size=len(self.tokenizer),
        )

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What the model takes of a batch, by name."""
        return batch.inputs

    def judged(self, predicted: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the words of each row, and the share of them that is found; 0 where none is hidden."""
        words, targets = batch.of_targets(predicted["words"].cpu()), batch.targets.cpu()
        rows = batch.rows.cpu()
        count = torch.bincount(rows, minlength=batch.count).clamp(min=1)
        costs = nn.functional.cross_entropy(words, targets, reduction="none")
        hits = (words.argmax(-1) == targets).to(costs.dtype)
        none = costs.new_zeros(batch.count)
        return {
            "loss": none.index_add(0, rows, costs) / count,
            "score": none.index_add(0, rows, hits) / count,
        }

    def loss(self, predicted: dict[str, Tensor], batch: Batch) -> StepLoss:
        """Cross-entropy of the words, a mean over those of the whole step; and that of the second parts."""
        said = batch.of_targets(predicted["words"])
        words = nn.functional.cross_entropy(said, batch.targets, reduction="sum")
        # Processes average their gradients, and each of them has its own number of words.
        mean = words * (self.workers.count / max(batch.total, 1))
        if "classes" in predicted:
            mean = mean + nn.functional.cross_entropy(predicted["classes"], batch.classes)
        return StepLoss(mean, {"loss": mean.detach() * batch.count})

    def measured(self, predicted: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and hits, with how many there could have been."""
        words, targets = batch.of_targets(predicted["words"]), batch.targets
        zero = torch.zeros((), device=words.device)
        sums = dict.fromkeys(self.summed, zero) | {
            "loss": nn.functional.cross_entropy(words, targets, reduction="sum"),
            "hits": (words.argmax(-1) == targets).sum(),
            "places": torch.full_like(zero, len(targets)),
        }
        if "classes" in predicted:
            classes = predicted["classes"]
            sums |= {
                "next_loss": nn.functional.cross_entropy(classes, batch.classes, reduction="sum"),
                "next_hits": (classes.argmax(-1) == batch.classes).sum(),
                "pairs": torch.full_like(zero, batch.count),
            }
        return sums

    def examined(self, model: nn.Module, batch: Batch, split: str) -> Mapping[str, Tensor]:
        """What the model predicts and, of the test, what the baselines say of the same places."""
        sums = super().examined(model, batch, split)
        if split != "test":
            return sums
        return {**sums, **self._baselines(batch)}

    def _baselines(self, batch: Batch) -> dict[str, Tensor]:
        row, column = batch.places.cpu().nonzero(as_tuple=True)
        numbers, targets = batch.numbers.cpu(), batch.targets.cpu()
        blanks = column + int(self.options.objective == "causal")
        likeliest = self._counts.between(numbers[row, blanks - 1], numbers[row, blanks + 1])
        found = {
            "unigram": (targets == self._counts.most_frequent).sum(),
            "bigram": (targets == likeliest).sum(),
            "baseline_places": torch.tensor(len(targets)),
        }
        return {name: value.to(self.workers.device) for name, value in found.items()}

    @cached_property
    def _counts(self) -> NeighbourCounts:
        start, end = map(self.tokenizer.number, SPECIAL[:2])
        apart = self.options.objective == "tlm"
        rows = (
            [start, *one.first, *([end] if apart else []), *one.second, end]
            for one in self._passages["train"]
        )
        return NeighbourCounts(rows, len(self.tokenizer), len(self.tokenizer.special))

    @cached_property
    def _known_shares(self) -> dict[str, float]:
        """The share of the tokens of each split that may be hidden."""
        least, shares = len(self.tokenizer.special), {}
        for name, held in self._passages.items():
            tokens = [token for one in held for part in one[:2] for token in part]
            shares[f"{name}_known_share"] = round(
                sum(token >= least for token in tokens) / max(len(tokens), 1), 4
            )
        return shares

    @classmethod
    def evaluated(cls, sums: Mapping[str, float], count: float) -> dict[str, float]:
        """Means over the places, and over the pairs and the places of the baselines where there are any."""
        places, pairs = sums["places"], max(sums["pairs"], 1)
        if not places:
            raise InputError(
                f"no word of {count:.0f} passages was chosen to be found, so that nothing is measured. Give more "
                "text to validate and to test on, or choose more words (--set rate=0.15)."
            )
        found = {
            "loss": sums["loss"] / places + sums["next_loss"] / pairs,
            "masked_accuracy": sums["hits"] / places,
        }
        if sums["pairs"]:
            found["next_accuracy"] = sums["next_hits"] / pairs
        if sums["baseline_places"]:
            found["unigram_accuracy"] = sums["unigram"] / sums["baseline_places"]
            found["bigram_accuracy"] = sums["bigram"] / sums["baseline_places"]
        return found

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with its words, and the text."""
        assert isinstance(model, models.Cloze)  # noqa: S101 - what ``model`` made
        train = self.data[0]
        return {
            "model": {
                "name": self.options.model,
                "configuration": model.configuration(),
                "objective": self.options.objective,
                "languages": list(train.languages),
                "longest": self.options.longest,
            },
            "data": {
                "name": train.name,
                "note": train.note,
                **{f"{name}_passages": len(held) for name, held in self._passages.items()},
                **self._known_shares,
                **self.fingerprints(),
            },
            "notes": [
                "Accuracies are of words that the tokenizer knows; no other is hidden.",
                "The baselines are counted on the text to train on and see what the model sees.",
            ],
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the text that is trained, validated and tested on, and of the tokenizer."""
        return {
            **{f"{name}_text_sha256": part.digest for name, part in zip(_SPLITS, self.data, strict=True)},
            "tokenizer_sha256": digest_of_bytes(self.tokenizer.text.encode()),
        }

    def files(self) -> Mapping[str, str]:
        """The tokenizer."""
        return {TOKENIZER_FILE: self.tokenizer.text}
