"""Masked words, next sentences, translations and next words with BERT, whose attention has an explicit preference.

Commands::

    python examples/fill_mask.py train --data toy --out run
    python examples/fill_mask.py use run --texts "the [MASK] near the river sings ."
    python examples/fill_mask.py train --data FOLDER/wikitext2 --objective mask_next --out run
    python examples/fill_mask.py train --data FOLDER/multi30k --objective tlm --columns "en de" --out pairs
    python examples/fill_mask.py train --data FOLDER/trec --objective classify --pretrained run --out classes
"""

import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.metrics import accuracy_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForPreTraining

from common import load_run, load_test, main
from data import learned_words, padded
from fenchel.errors import InputError
from fenchel.integrations.transformers import register
from passages import END, FIRST, MASK, PAD, SPECIAL, read_texts, toy
from task import Batch, Options, Record, Task, choice, option, several

# BERT's head is tied to its embeddings, which accelerate would say at every checkpoint.
logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
Words = list[int]
REACH = 16  # distances beyond it have its log-preference


@dataclass
class FillOptions(Options):
    """BERT as small as it can be."""

    batch_size: int = option(32, "passages in a step, over all processes")
    schedule: str = option("linear", "transformers' name of a schedule")
    warmup: float = option(0.1, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.05, "of AdamW")
    clip_norm: float = option(1.0, "largest norm of the gradient; 0: no limit")
    objective: str = choice(
        "mask: words that are hidden; mask_next: and whether the second half follows; tlm: words hidden in a text and "
        "its translation; causal: the next word; classify: the label of a text",
        *("mask", "mask_next", "tlm", "causal", "classify"),
    )
    columns: str = option("", "of the text, or of both texts; default: text, or the two first")
    shares: str = option("80/10/10", "of chosen words in training: hidden, left, exchanged for another")
    rate: float = option(0.15, "how probable it is that a word is chosen")
    longest: int = option(64, "words of a passage; what is longer is cut")
    vocabulary: int = option(8000, "words that are known, the most frequent of the text to train on")
    words: str = choice(
        "a word ends at spaces and punctuation; or at spaces alone, for text that is cut into words, such as WikiText",
        *("punctuation", "spaces"),
    )
    preference: str = choice("log-preference by distance, or none", "relative", "uniform")
    estimator: str = choice("of all attention", "first_order", "second_order", "exact")
    width: int = option(128, "of the hidden states")
    depth: int = option(3, "layers")
    heads: int = option(4, "of each layer")
    mlp_width: int = option(512, "hidden units of the feed-forward networks")
    dropout: float = option(0.1, "rate")
    train_texts: int = option(0, "train on so many passages, the first ones; 0: all")
    pretrained: str = option("", "folder of a run whose weights and words classify begins with")

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.shares.split("/")
        if len(parts) != 3 or not all(part.isdigit() for part in parts) or sum(map(int, parts)) != 100:
            raise InputError(f"shares is {self.shares!r}; expected per cents of sum 100, such as 80/10/10.")
        if self.pretrained and self.objective != "classify":
            raise InputError("pretrained is for --objective classify. Leave it out.")


class Passage(NamedTuple):
    """Numbers of the words of a passage in one or two parts, which article it is of, and its label."""

    number: int
    first: list[int]
    second: list[int]
    article: int
    label: int = -1


class Blanks(BertForPreTraining):
    """BERT whose log-preference is a learned function of distance, one for each head, in all layers.

    Args:
        config: Of BERT; ``preference`` is ``relative`` or ``uniform``, ``causal`` whether later words are masked.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        relative, head = config.preference == "relative", torch.arange(config.num_attention_heads)[:, None]
        # Neighbours first, before a word or after it.
        distance = (torch.arange(-REACH, REACH + 1) - 2 * (head % 2) + 1).abs()
        start = -torch.where(head < 2, 2.0, 0.5) * distance * relative
        # Of one dimension, so that weight decay leaves it alone.
        self.log_preference = nn.Parameter(start.flatten(), requires_grad=relative)
        if config.classes:
            self.cls.seq_relationship = nn.Linear(config.hidden_size, config.classes)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        places: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Logits of the words at ``places``, a bool mask, (k, vocabulary), and of classes (B, classes); last states."""
        heads = self.config.num_attention_heads
        distance = (position_ids[:, None, :] - position_ids[:, :, None]).clamp(-REACH, REACH) + REACH
        log_u = self.log_preference.view(heads, -1)[:, distance].transpose(0, 1)
        masked = attention_mask[:, None, None, :] == 0
        if self.config.causal:
            order = torch.arange(input_ids.shape[1], device=input_ids.device)
            masked = masked | (order > order[:, None])
        log_u = log_u.masked_fill(masked, -torch.inf)
        result = self.bert(input_ids, log_u, token_type_ids, position_ids)
        hidden = result.last_hidden_state[attention_mask > 0 if places is None else places]
        return {
            "words": self.cls.predictions(hidden),
            "classes": self.cls.seq_relationship(result.pooler_output),
            "last_hidden_state": result.last_hidden_state,  # what swaps compare: it has a row for each of the inputs
        }


class FillMask(Task):
    """Words from their context, and classes of texts."""

    name, larger_is_better = "fill_mask", True

    def __init__(self, options: FillOptions) -> None:
        super().__init__(options)
        self.metric = "accuracy" if options.objective == "classify" else "masked_accuracy"
        texts, self.classes = toy(options) if options.data == "toy" else read_texts(options)
        self.before = load_run(FillMask, FillOptions, options.pretrained) if options.pretrained else None
        trained = (text for article, _ in texts["train"] for pair in article for text in pair)
        if self.before:
            self.tokenizer = self.before[0].tokenizer
        else:
            self.tokenizer = learned_words(trained, options.vocabulary, SPECIAL, ends=options.words)
        self.splits = {name: self._passages(articles) for name, articles in texts.items()}
        self.others = self.splits["train"]  # whose second halves stand for those that do not follow
        if options.train_texts:
            self.splits["train"] = self.splits["train"][: options.train_texts]
        for name, held in self.splits.items():
            if not held:
                raise InputError(f"{options.data} leaves no passage for {name}. Give more text.")
        counts = Counter(word for one in self.splits["train"] for word in one.first + one.second)
        self.most_frequent = max((word for word in counts if word > MASK), key=counts.__getitem__)

    def _passages(self, articles: Sequence[tuple[list[tuple[str, ...]], int]]) -> list[Passage]:
        """Sentences of an article in a row, as many as fit; or the two texts of a pair."""
        o, result = self.options, []
        for number, (sentences, label) in enumerate(articles):
            every = [self.tokenizer.encode_batch(list(pair)) for pair in sentences]
            numbers = [[one.ids[: o.longest] for one in pair] for pair in every]
            if o.objective in ("tlm", "classify"):
                for first, *rest in numbers:
                    result.append(Passage(0, first, rest[0] if rest else [], number, label))
                continue
            held: list[list[int]] = []
            for (words,) in [*numbers, ([],)]:
                if held and (not words or sum(map(len, held)) + len(words) > o.longest):
                    cut = max(len(held) // 2, 1)
                    first, second = (sum(part, []) for part in (held[:cut], held[cut:]))  # noqa: RUF017 - short
                    if second or o.objective != "mask_next":
                        result.append(Passage(0, first, second, number))
                    held = []
                held += [words] if words else []
        return [one._replace(number=number) for number, one in enumerate(result) if one.first]

    def model(self) -> Blanks:
        """See ``Task``."""
        o = self.options
        register()
        config = BertConfig(
            vocab_size=self.tokenizer.get_vocab_size(),
            hidden_size=o.width,
            num_hidden_layers=o.depth,
            num_attention_heads=o.heads,
            intermediate_size=o.mlp_width,
            hidden_dropout_prob=o.dropout,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=2 * o.longest + 3,
            **{"preference": o.preference, "causal": o.objective == "causal", "classes": len(self.classes)},
        )
        model = Blanks(config)
        model.set_attn_implementation(f"fenchel_{o.estimator}")
        if self.before:
            fitting = {k: v for k, v in self.before[1].state_dict().items() if "seq_relationship" not in k}
            model.load_state_dict(fitting, strict=False)
        return model

    def batch(self, examples: Sequence[Passage], *, training: bool) -> Batch:
        """See ``Task``; what is hidden in a test follows from the number of the passage."""
        rows = []
        for one in examples:
            draw = random.Random(int(torch.randint(2**62, ())) if training else one.number)  # noqa: S311
            second, label = one.second, one.label
            if label < 0:
                label = int(self.options.objective == "mask_next" and draw.random() < 0.5)
                second = self._another(one, draw) if label else second
            rows.append((*self._row(one.first, second, draw, training), label))
        ids, kinds, positions, places, targets, labels = zip(*rows, strict=True)
        return {
            "input_ids": padded(ids),
            "attention_mask": (padded(ids) != PAD).long(),
            "token_type_ids": padded(kinds),
            "position_ids": padded(positions),
            "places": padded(places).bool(),
            "targets": torch.tensor([target for row in targets for target in row]),
            "labels": torch.tensor(labels),
        }

    def _another(self, passage: Passage, draw: random.Random) -> list[int]:
        """The second half of a passage of another article, one that is not longer than a passage may be."""
        room = self.options.longest - len(passage.first)
        for _ in range(1000):
            result = draw.choice(self.others)
            if result.article != passage.article and 0 < len(result.second) <= room:
                return result.second
        raise InputError("no second half of another article fits. Give more text, or a larger --longest.")

    def _row(self, first: Words, second: Words, draw: random.Random, training: bool) -> list[Words]:
        """Ids, segments, positions, places and targets of a row."""
        o, causal = self.options, self.options.objective == "causal"
        hide, keep, _ = map(int, o.shares.split("/")) if training else (100, 0, 0)
        if o.objective in ("mask", "causal"):
            first, second = first + second, []
        ids, targets = [FIRST, *first, END], []
        kinds, positions = [0] * len(ids), list(range(len(ids)))
        if second:
            begin = 1 if o.objective == "tlm" else len(ids)  # a translation has the places of its text
            ids, kinds = [*ids, *second, END], kinds + [1] * (len(second) + 1)
            positions += range(begin, begin + len(second) + 1)
        places, seen = [0] * len(ids), list(ids)
        for place, word in enumerate(ids):
            if word <= MASK or o.objective == "classify":
                continue
            if draw.random() >= o.rate and not (causal and training):
                continue
            places[place - causal] = 1
            targets.append(word)
            if not causal:
                share, other = draw.randrange(100), draw.randrange(MASK + 1, self.tokenizer.get_vocab_size())
                seen[place] = MASK if share < hide else word if share < hide + keep else other
        return [seen, kinds, positions, places, targets]

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """See ``Task``; the mean over words of the step, and with next sentences that over rows."""
        result, count = model(**inputs(batch)), len(batch["targets"])
        of_class = cross_entropy(result["classes"].float(), batch["labels"])
        if self.options.objective == "classify":
            return of_class * len(batch["labels"]), len(batch["labels"])
        loss = cross_entropy(result["words"].float(), batch["targets"], reduction="sum")
        return loss + count * of_class if self.options.objective == "mask_next" else loss, count

    def records(self, model: nn.Module, batch: Batch) -> list[Record]:
        """See ``Task``."""
        result = model(**inputs(batch))
        loss = cross_entropy(result["words"].float(), batch["targets"], reduction="none")
        of_row = batch["places"].sum(1).tolist()
        parts = [one.split(of_row) for one in (batch["targets"], result["words"].argmax(-1), loss)]
        records = [
            {"words": right.tolist(), "answers": said.tolist(), "loss": float(lost.sum())}
            for right, said, lost in zip(*parts, strict=True)
        ]
        if self.options.objective in ("mask_next", "classify"):
            loss = cross_entropy(result["classes"].float(), batch["labels"], reduction="none")
            options = {"label": batch["labels"], "answer": result["classes"].argmax(-1), "label_loss": loss}
            for name, values in options.items():
                for record, value in zip(records, values.tolist(), strict=True):
                    record[name] = value
        return records

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """See ``Task``; ``unigram_accuracy`` is that of always saying the most frequent word."""
        result = {}
        if "label" in records[0]:
            labels, answers = [one["label"] for one in records], [one["answer"] for one in records]
            name = "accuracy" if self.options.objective == "classify" else "next_accuracy"
            result[name] = float(accuracy_score(labels, answers))
            result["label_loss"] = sum(one["label_loss"] for one in records) / len(records)
        words, answers = ([word for one in records for word in one[name]] for name in ("words", "answers"))
        if words:
            result["masked_accuracy"] = float(accuracy_score(words, answers))
            result["unigram_accuracy"] = words.count(self.most_frequent) / len(words)
            result["loss"] = sum(one["loss"] for one in records) / len(words)
        return result

    def audited(self, examples: Sequence[Passage], batch: Batch) -> Batch:
        """See ``Task``; a document is an article."""
        mask = batch["attention_mask"].bool()
        rows = [row[real].tolist() for row, real in zip(batch["input_ids"], mask, strict=True)]
        return {
            "inputs": inputs(batch),
            "counted": mask,
            "documents": [one.article + 1 for one in examples],
            "windows": [one.number + 1 for one in examples],
            "tokens": [[self.tokenizer.id_to_token(word) for word in row] for row in rows],
            "loss": partial(losses, batch=batch, classify=self.options.objective == "classify"),
        }


def inputs(batch: Batch) -> dict[str, Tensor]:
    """What the model takes of a batch."""
    return {name: value for name, value in batch.items() if name not in ("targets", "labels")}


@dataclass
class UseOptions:
    """What is asked of a trained model."""

    texts: list[str] = several("with [MASK] for each blank, or to be classified")
    top: int = option(3, "words for each blank")


def use(task: FillMask, model: Blanks, options: UseOptions) -> None:
    """Print the likeliest words of each blank, or the class of each text."""
    if not options.texts:
        raise InputError('no text was given. Give --texts "the [MASK] near the river sings ."')
    for text in options.texts:
        ids = []
        for part in text.split("[MASK]"):
            ids += [MASK, *task.tokenizer.encode(part).ids]
        ids = ids[1:]
        if task.options.objective != "classify" and MASK not in ids:
            raise InputError(f"{text!r} has no [MASK]. Write [MASK] where a word is missing.")
        row = torch.tensor([[FIRST, *ids[: 2 * task.options.longest], END]])
        given = torch.ones_like(row), torch.zeros_like(row), torch.arange(row.shape[1])[None], row == MASK
        with torch.no_grad():
            result = model(row, *given)
        if task.options.objective == "classify":
            best = result["classes"][0].softmax(-1).max(-1)
            print(f"{text}: {task.classes[int(best.indices)]} {best.values:.3f}")
            continue
        for number, blank in enumerate(result["words"].softmax(-1), start=1):
            best = blank.topk(options.top)
            words = [f"{task.tokenizer.id_to_token(int(k))} {p:.3f}" for p, k in zip(*best, strict=True)]
            print(f"{text}, blank {number}: {', '.join(words)}")


def load(folder: str | Path) -> tuple[nn.Module, list[Batch]]:
    """The model of a run and its test passages, for ``fenchel audit`` and ``fenchel swap``."""
    return load_test(FillMask, FillOptions, folder)


def losses(output: dict[str, Tensor], batch: Batch, *, classify: bool) -> Tensor:
    """Cross-entropy of each row: of its label, or the mean over its hidden words, 0 where none is."""
    logits, right = (output["classes"], batch["labels"]) if classify else (output["words"], batch["targets"])
    every = cross_entropy(logits.float(), right.to(logits.device), reduction="none")
    if classify:
        return every
    of_row = batch["places"].sum(1).tolist()
    return torch.stack([one.sum() / max(len(one), 1) for one in every.split(of_row)])


if __name__ == "__main__":
    main(FillMask, FillOptions, use, UseOptions)
