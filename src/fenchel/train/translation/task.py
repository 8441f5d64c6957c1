"""The training of a translator: what the loop does not know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fenchel import models
from fenchel.arguments import shown
from fenchel.data import ParallelCorpus, SentencePairs, Subwords, load_pairs
from fenchel.data.subwords import TOKENIZER_FILE
from fenchel.errors import InputError
from fenchel.models.translation import Translator
from fenchel.train.bleu import BLEU, BLEU_SUMS, bleu_of_sums, bleu_signature, bleu_sums
from fenchel.train.files import digests_of
from fenchel.train.metric import Metric
from fenchel.train.registry import registered
from fenchel.train.sharing import share_of_batch
from fenchel.train.task import DataSummary, StepLoss, Task
from fenchel.train.translation.batches import NumberedPairs, PairBatch
from fenchel.train.translation.cross_entropy import smoothed_cross_entropy
from fenchel.train.translation.options import TranslationOptions
from fenchel.train.workers import Workers

__all__ = ["TARGET_TOKENIZER_FILE", "Translation"]

TARGET_TOKENIZER_FILE = "target_tokenizer.json"
"""The name, in a training's folder, of the tokenizer of the target where each language has its own."""

_SPECIAL = ("[BOS]", "[EOS]")
_USUAL_TEST = "test_2016_flickr"
_EVALUATED = 100
_OF_THE_MODEL = (
    "width",
    "depth",
    "bidirectional",
    "query",
    "score",
    "preference",
    "place",
    "spread",
    "head",
    "tied",
    "start",
    "attention",
    "estimator",
    "alpha",
    "closeness",
    "dropout",
    "longest",
)


_BEAM_SUMS = tuple(f"beam_{name}" for name in BLEU_SUMS)


@registered
class Translation(Task[TranslationOptions, ParallelCorpus, PairBatch]):
    """A translator.

    Tokenizers are learned from the pairs that are trained on. After epochs the pairs to validate on are translated
    greedily; the weights with the best BLEU on them are kept, and the test is translated once, in the end.
    """

    name = "translation"
    models = ("translator",)
    unit = "pairs"
    options_type = TranslationOptions
    metrics = (
        Metric("loss", "cross-entropy in nats a word", higher_is_better=False, least=0.0),
        BLEU,
    )
    headline = "bleu"
    watched = "validation"
    selects = "bleu"
    judges = MappingProxyType({"loss": "cross-entropy a piece of a word", "score": "pieces foretold rightly"})
    only_tested = (Metric("beam_bleu", "BLEU of a beam", higher_is_better=True, least=0.0, most=100.0),)
    summed = ("surprise", "words", *BLEU_SUMS, *_BEAM_SUMS)

    def __init__(self, options: TranslationOptions, data: ParallelCorpus, workers: Workers) -> None:
        if not isinstance(data, ParallelCorpus):
            raise InputError(f"data is {shown(data)}; expected a ParallelCorpus.")
        super().__init__(options, data, workers)
        corpus = data.towards(options.direction)
        self._splits = {
            "train": _first(corpus.train, options.train_sentences),
            "validation": corpus.validation,
            "test": corpus.test(_test_name(corpus, options.test)),
        }
        self.tokenizers = _learned(self._splits["train"], options)
        numbered = {
            name: NumberedPairs.of(split.first, split.second, self.tokenizers)
            for name, split in self._splits.items()
        }
        numbered["train"] = numbered["train"].no_longer_than(options.longest)
        self._left_out = len(self._splits["train"]) - len(numbered["train"])
        self._numbered = numbered
        unit = f"pairs of at most {options.longest} pieces"
        share = share_of_batch(options.batch_size, len(numbered["train"]), workers, unit)
        self._batch = share * workers.count

    @classmethod
    def read(cls, data: str) -> ParallelCorpus:
        """The pairs of a name or path."""
        return load_pairs(data)

    @classmethod
    def summary(cls, data: ParallelCorpus) -> DataSummary:
        """How many pairs there are, and which; all sets to test on count."""
        parts = [data.train, data.validation, *data.tests.values()]
        digest = hashlib.sha256(" ".join(part.digest for part in parts).encode()).hexdigest()
        note = "; ".join(dict.fromkeys(part.note for part in parts if part.note))
        return DataSummary(len(data.train), sum(map(len, data.tests.values())), None, note, digest)

    def model(self) -> nn.Module:
        """A translator of these words."""
        source, target = self.tokenizers
        given = {name: getattr(self.options, name) for name in _OF_THE_MODEL}
        return models.build(
            self.options.model,
            source_vocabulary=len(source),
            target_vocabulary=len(target),
            length_ratio=self._numbered["train"].length_ratio,
            **{name: value for name, value in given.items() if value is not None},
        )

    @property
    def steps_per_epoch(self) -> int:
        """As many as there are whole batches; what is left over is another part of the data every epoch."""
        return len(self._numbered["train"]) // self._batch

    @property
    def _share(self) -> slice:
        return slice(self.workers.rank, None, self.workers.count)

    def batches(self, epoch: int, first: int) -> Iterator[PairBatch]:
        """Pairs of about the same length, in an order of their own every epoch."""
        train = self._numbered["train"]
        for places in train.order(epoch, size=self._batch, seed=self.options.seed)[first:]:
            yield train.batch(places, self._share, self.workers.device)

    def examples(self, split: str) -> Iterator[PairBatch]:
        """The pairs of a split, the short ones first."""
        return self._numbered[split].in_order_of_length(_EVALUATED, self._share, self.workers.device)

    def inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        """What the model is called with: the source, and the target up to every word that is to be predicted."""
        return {"source": batch.source, "target": batch.target[:, :-1]}

    def loss(self, predicted: Tensor, batch: PairBatch) -> StepLoss:
        """Smoothed cross-entropy a word, over all words of the step in all processes."""
        divisor = batch.words / self.workers.count
        mean, _ = smoothed_cross_entropy(
            predicted.flatten(0, 1),
            batch.target[:, 1:].flatten(),
            smoothing=self.options.label_smoothing,
            divisor=divisor,
        )
        return StepLoss(mean, {"loss": mean.detach() * batch.count})

    def examined(self, model: nn.Module, batch: PairBatch, split: str) -> Mapping[str, Tensor]:
        """Cross-entropy, and what BLEU counts in greedy translations, and of the test in those of a beam.

        In float32 whatever the training multiplies in: in bfloat16 a translation would depend on what it is batched
        with.
        """
        found = self.measured(self.predicted(model, batch), batch)
        counts, wanted = dict.fromkeys(self.summed[2:], 0.0), [[one] for one in batch.references]
        counts |= bleu_sums(self.translations(model, batch.source), wanted)
        if split == "test" and self.options.beam > 1:
            said = self.translations(model, batch.source, beam=self.options.beam)
            of_beam = bleu_sums(said, wanted)
            counts |= {name: of_beam[own] for name, own in zip(_BEAM_SUMS, BLEU_SUMS, strict=True)}
        return {**found, **{name: torch.tensor(count) for name, count in counts.items()}}

    def judged(self, predicted: Tensor, batch: PairBatch) -> dict[str, Tensor]:
        """The mean cross-entropy of each translation, and the share of its pieces that are the likeliest."""
        labels = batch.target[:, 1:]
        real = labels != 0
        surprise = nn.functional.cross_entropy(predicted.mT, labels, ignore_index=0, reduction="none")
        right = (predicted.argmax(-1) == labels) & real
        words = real.sum(1)
        return {"loss": surprise.sum(1) / words, "score": right.sum(1) / words}

    def measured(self, predicted: Tensor, batch: PairBatch) -> dict[str, Tensor]:
        """Cross-entropy, without smoothing, and how many words it is of."""
        labels = batch.target[:, 1:].flatten()
        _, surprise = smoothed_cross_entropy(predicted.flatten(0, 1), labels)
        return {"surprise": surprise, "words": (labels != 0).sum()}

    def translations(self, model: nn.Module, source: Tensor, *, beam: int = 1) -> list[str]:
        """Translations as text, greedy ones or those of a beam."""
        assert isinstance(model, Translator)  # noqa: S101 - what ``model`` made
        return [self.tokenizers[1].decoded(one.words) for one in model.translated(source, beam=beam)]

    @classmethod
    def evaluated(cls, sums: Mapping[str, float], count: float) -> dict[str, float]:
        """Cross-entropy a word, and the BLEU of all translations together; of a beam's, where there are any."""
        del count
        found = {"loss": sums["surprise"] / sums["words"], "bleu": bleu_of_sums(sums)}
        of_beam = {own: sums[name] for name, own in zip(_BEAM_SUMS, BLEU_SUMS, strict=True)}
        return {**found, "beam_bleu": bleu_of_sums(of_beam)} if of_beam["bleu_wanted"] else found

    def described(self, model: nn.Module) -> dict[str, Any]:
        """The model with its languages, and the pairs."""
        assert isinstance(model, Translator)  # noqa: S101 - what ``model`` made
        source, _, target = self.options.direction.partition("-")
        beam = f"; beam BLEU the same with a beam of {self.options.beam}" if self.options.beam > 1 else ""
        notes = [f"BLEU is sacrebleu's, {bleu_signature()}, of greedy translations{beam}."]
        if self._left_out:
            notes.append(
                f"{self._left_out:,} pairs with a sentence of more than {self.options.longest} pieces are not trained "
                "on."
            )
        return {
            "model": {
                "name": self.options.model,
                "configuration": model.configuration(),
                "source_language": source,
                "target_language": target,
                "vocabulary": self.options.vocabulary,
            },
            "data": {
                "name": self.data.name,
                "note": "; ".join(dict.fromkeys(part.note for part in self._splits.values() if part.note)),
                "test": _test_name(self.data, self.options.test),
                **{f"{name}_pairs": len(pairs) for name, pairs in self._numbered.items()},
                **self.fingerprints(),
            },
            "notes": notes,
        }

    def fingerprints(self) -> dict[str, str]:
        """Of the pairs that are trained, validated and tested on, and of the tokenizers."""
        return {
            **{f"{name}_pairs_sha256": split.digest for name, split in self._splits.items()},
            **{f"{name}_sha256": digest for name, digest in digests_of(self.files()).items()},
        }

    def files(self) -> Mapping[str, str]:
        """The tokenizers: of both languages, or of the source and of the target."""
        source, target = self.tokenizers
        if self.options.vocabulary == "joint":
            return {TOKENIZER_FILE: source.text}
        return {TOKENIZER_FILE: source.text, TARGET_TOKENIZER_FILE: target.text}


def _first(pairs: SentencePairs, wanted: int | None) -> SentencePairs:
    if wanted is not None and wanted > len(pairs):
        raise InputError(
            f"{pairs.name}: {wanted:,} pairs to train on were asked for and there are {len(pairs):,}; ask for fewer."
        )
    return pairs if wanted is None else pairs.taken(wanted)


def _test_name(corpus: ParallelCorpus, wanted: str | None) -> str:
    """What is tested on: what was asked for, else the usual set, else the only one."""
    if wanted is not None:
        return wanted
    if _USUAL_TEST not in corpus.tests and len(corpus.tests) == 1:
        return next(iter(corpus.tests))
    return _USUAL_TEST


def _learned(pairs: SentencePairs, options: TranslationOptions) -> tuple[Subwords, Subwords]:
    """A tokenizer for either language, of the sentences that are trained on."""
    if options.vocabulary == "joint":
        joint = Subwords.learned((*pairs.first, *pairs.second), size=options.subwords, special=_SPECIAL)
        return joint, joint
    source, target = (
        Subwords.learned(side, size=options.subwords, special=_SPECIAL)
        for side in (pairs.first, pairs.second)
    )
    return source, target
