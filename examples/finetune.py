"""Fine-tuning a pretrained encoder of transformers on texts with labels, such as SST-2.

Commands::

    python examples/finetune.py train --data toy --pretrained FOLDER --out run
    python examples/finetune.py train --data FOLDER/sst2 --out run
    python examples/finetune.py use run --texts "a joy from start to end" --save classifier

``--save`` writes the model as ``save_pretrained`` does, for ``fenchel swap classifier --label-column label``.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from common import load_test, main
from data import check_columns, check_labels, label_names, read_splits, validation_and_test
from fenchel.integrations.transformers import load_model
from task import Batch, Options, Record, Task, option, several

TEXTS, LABELS = ("text", "sentence"), ("label", "labels", "coarse_label")
POOL = 20  # batches whose texts are sorted by length together


@dataclass
class FinetuneOptions(Options):
    """What is common for encoders of this size."""

    pretrained: str = option("demo", "demo for the encoder that comes along, a folder, or a name of the hub")
    epochs: int = option(2, "passes over the data")
    batch_size: int = option(32, "texts in a step, over all processes")
    learning_rate: float = option(1e-4, "the largest")
    schedule: str = option("linear", "transformers' name of a schedule")
    warmup: float = option(0.1, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.01, "of AdamW")
    clip_norm: float = option(1.0, "largest norm of the gradient; 0: no limit")
    longest: int = option(64, "tokens of a text, special ones included; what is longer is cut")
    train_texts: int = option(0, "train on so many texts, the first ones; 0: all")


class Finetune(Task):
    """Classes of texts."""

    name, metric, larger_is_better = "finetune", "accuracy", True

    def __init__(self, options: FinetuneOptions) -> None:
        super().__init__(options)
        result = validation_and_test(toy() if options.data == "toy" else read_splits(options.data))
        names = result["train"].column_names
        text, label = (next((one for one in some if one in names), some[0]) for some in (TEXTS, LABELS))
        check_columns(result, [text, label], options.data)
        self.classes = label_names(result["train"], label)
        check_labels(result, label, len(self.classes), options.data)
        self.encoder, self.tokenizer, _ = load_model(options.pretrained)
        self.splits = {
            str(name): list(zip(rows[text], rows[label], strict=True)) for name, rows in result.items()
        }
        if options.train_texts:
            self.splits["train"] = self.splits["train"][: options.train_texts]

    def model(self) -> nn.Module:
        """See ``Task``; the classifier on top is new."""
        config: Any = self.encoder.config
        config.update({"num_labels": len(self.classes), "id2label": dict(enumerate(self.classes))})
        model = AutoModelForSequenceClassification.from_config(config)
        kept = {f"{model.base_model_prefix}.{name}": one for name, one in self.encoder.state_dict().items()}
        model.load_state_dict(kept, strict=False)
        return model

    def batches(self, split: str, size: int, epoch: int | None) -> Iterator[list[int]]:
        """See ``Task``; in training texts of about the same length come together."""
        batches = list(super().batches(split, size, epoch))
        if epoch is None:
            yield from batches
            return
        for start in range(0, len(batches), POOL):
            some = [one for batch in batches[start : start + POOL] for one in batch]
            some.sort(key=lambda one: len(self.splits[split][one][0]))
            parts = [some[first : first + size] for first in range(0, len(some), size)]
            for place in torch.randperm(len(parts)).tolist():
                yield parts[place]

    def batch(self, examples: Sequence[tuple[str, int]], *, training: bool) -> Batch:
        """See ``Task``."""
        del training
        texts, labels = zip(*examples, strict=True)
        cut = {"truncation": True, "max_length": self.options.longest}
        result = self.tokenizer(list(texts), padding=True, return_tensors="pt", **cut)
        return {**result, "label": torch.tensor(labels)}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Of the classes, (B, classes)."""
        return model(**inputs(batch)).logits.float()

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """See ``Task``."""
        return cross_entropy(self.logits(model, batch), batch["label"], reduction="sum"), len(batch["label"])

    def records(self, model: nn.Module, batch: Batch) -> list[Record]:
        """See ``Task``."""
        logits = self.logits(model, batch)
        loss = cross_entropy(logits, batch["label"], reduction="none").tolist()
        rows = zip(batch["label"].tolist(), logits.argmax(1).tolist(), loss, strict=True)
        return [{"label": label, "answer": answer, "loss": lost} for label, answer, lost in rows]

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """See ``Task``."""
        labels, answers = [one["label"] for one in records], [one["answer"] for one in records]
        loss = sum(one["loss"] for one in records) / len(records)
        return {"accuracy": float(accuracy_score(labels, answers)), "loss": loss}

    def audited(self, examples: Sequence[Any], batch: Batch) -> Batch:
        """See ``Task``."""
        del examples
        rows = zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
        return {
            "inputs": inputs(batch),
            "counted": batch["attention_mask"].bool(),
            "tokens": [self.tokenizer.convert_ids_to_tokens(row[real].tolist()) for row, real in rows],
            "loss": partial(losses, labels=batch["label"]),
            "score": partial(hits, labels=batch["label"]),
        }


def inputs(batch: Batch) -> dict[str, Tensor]:
    """What the model takes of a batch."""
    return {name: value for name, value in batch.items() if name != "label"}


def losses(output: Any, labels: Tensor) -> Tensor:
    """Cross-entropy of each text."""
    return cross_entropy(output["logits"].float(), labels.to(output["logits"].device), reduction="none")


def hits(output: Any, labels: Tensor) -> Tensor:
    """1 where the largest logit is that of the class."""
    return (output["logits"].argmax(-1) == labels.to(output["logits"].device)).double()


def toy() -> datasets.DatasetDict:
    """Opinions of which one word tells the class."""
    words, result = (("dull", "weak", "empty"), ("warm", "sharp", "moving")), {}
    for split, count in (("train", 240), ("validation", 60), ("test", 60)):
        draw = random.Random(split)  # noqa: S311
        kinds = [draw.randrange(2) for _ in range(count)]
        texts = [
            f"the {draw.choice(('film', 'plot', 'cast'))} is {draw.choice(words[kind])} ." for kind in kinds
        ]
        result[split] = datasets.Dataset.from_dict({"text": texts, "label": kinds})
    return datasets.DatasetDict(result)


@dataclass
class UseOptions:
    """What is asked of a trained classifier."""

    texts: list[str] = several("to be classified")
    save: str = option("", "folder to write the classifier into as transformers does")


def use(task: Finetune, model: Any, options: UseOptions) -> None:
    """Print the class of each text, and write the classifier where transformers finds it."""
    if options.texts:
        batch = task.batch([(text, 0) for text in options.texts], training=False)
        with torch.no_grad():
            chances = task.logits(model, batch).softmax(-1)
        for text, row in zip(options.texts, chances, strict=True):
            print(f"{text}: {task.classes[int(row.argmax())]} {float(row.max()):.3f}")
    if options.save:
        model.save_pretrained(options.save)
        task.tokenizer.save_pretrained(options.save)


def load(folder: str | Path) -> tuple[nn.Module, list[Batch]]:
    """The model of a run and its test texts, for ``fenchel audit`` and ``fenchel swap``."""
    return load_test(Finetune, FinetuneOptions, folder)


if __name__ == "__main__":
    main(Finetune, FinetuneOptions, use, UseOptions)
