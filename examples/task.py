"""What a task of the examples is, and its options."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fenchel.errors import InputError

Batch = dict[str, Any]
Record = dict[str, Any]
SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine", "inverse_sqrt")
FREE = ("out", "resume", "overwrite", "checkpoint_seconds", "quiet")  # options that a resumed run may change


def option(default: Any, text: str, **metadata: Any) -> Any:
    """A field of the options, with its help."""
    return field(default=default, metadata={"help": text, **metadata})


def choice(text: str, *values: str) -> Any:
    """A field of the options with some values, of which the first is the default."""
    return option(values[0], text, choices=values)


def several(text: str) -> Any:
    """A field of the options that takes any number of words, by default none."""
    return field(default_factory=list, metadata={"help": text})


@dataclass
class Options:
    """Options of every example."""

    data: str = option("toy", "toy, a folder with train.parquet, a file, or the name of a dataset of the hub")
    out: str = option("", "folder of the run")
    resume: bool = option(False, "go on with the run in --out")
    overwrite: bool = option(False, "replace the run in --out")
    seed: int = option(0, "of the weights, the order and dropout")
    epochs: int = option(10, "passes over the data")
    batch_size: int = option(64, "examples in a step, over all processes")
    learning_rate: float = option(1e-3, "the largest")
    schedule: str = option("constant", f"transformers' name: {', '.join(SCHEDULES)}")
    warmup: float = option(0.0, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.0, "of AdamW")
    clip_norm: float = option(0.0, "largest norm of the gradient; 0: no limit")
    mixed_precision: str = choice("no, bf16 or fp16", "no", "bf16", "fp16")
    checkpoint_seconds: float = option(60.0, "seconds between checkpoints within an epoch")
    quiet: bool = option(False, "show no progress")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "width", "depth", "heads", "longest"):
            if not (value := getattr(self, name, 1)) > 0:
                raise InputError(f"{name} is {value}; expected a number above 0. Give a larger --{name}.")
        for name, largest in (("warmup", 1.0), ("dropout", 0.99)):
            if not 0 <= getattr(self, name, 0) <= largest:
                raise InputError(f"{name} is {getattr(self, name)}; expected a share from 0 to {largest}.")
        if (width := getattr(self, "width", 0)) % (heads := getattr(self, "heads", 1)):
            raise InputError(f"heads is {heads} and width {width}; expected a multiple of heads. Change one.")
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule is {self.schedule!r}; expected one of {', '.join(SCHEDULES)}.")


@dataclass
class CosineOptions(Options):
    """With a learning rate that rises, and falls as a cosine."""

    schedule: str = option("cosine", "transformers' name of a schedule")
    warmup: float = option(0.05, "share of the steps in which the learning rate rises")
    weight_decay: float = option(0.01, "of AdamW")


class Task:
    """Data, model, objective and metrics of one example; the scripts beside this file derive from it.

    Attributes:
        name: Of the script.
        metric: The metric on the validation data that selects the epoch.
        larger_is_better: Whether that metric is better when it is larger.
        splits: The examples of each split: ``train``, ``validation`` and ``test``.

    Args:
        options: As the command line gave them.
    """

    name: ClassVar[str]
    metric: str = "loss"
    larger_is_better: ClassVar[bool] = False
    splits: dict[str, Sequence[Any]]

    def __init__(self, options: Any) -> None:
        self.options = options

    def model(self) -> nn.Module:
        """A new model; torch's generator is seeded before."""
        raise NotImplementedError

    def batch(self, examples: Sequence[Any], *, training: bool) -> Batch:
        """Tensors for the model of some examples of a split."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """The sum of the loss over a batch, and of how many terms: words, or examples."""
        raise NotImplementedError

    def records(self, model: nn.Module, batch: Batch) -> list[Record]:
        """What the model answers, with what is right: for each example a mapping that JSON can hold."""
        raise NotImplementedError

    def metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """Metrics of a split from the records of all its examples."""
        raise NotImplementedError

    def audited(self, examples: Sequence[Any], batch: Batch) -> Batch:
        """What audits and swaps read of a batch of the test: ``inputs``, and what is known of them."""
        raise NotImplementedError

    def batches(self, split: str, size: int, epoch: int | None) -> Iterator[list[int]]:
        """Numbers of the examples of each batch: in a random order that depends on seed and epoch, or as they are.

        Batches are about equally large: in training a last one of a few examples would count as much as the others, and
        its noise alone would make AdamW's steps smaller.

        Args:
            split: One of ``splits``.
            size: Examples in a batch, at most.
            epoch: Whose order it is; None for that of the data.
        """
        order = list(range(len(self.splits[split])))
        if epoch is not None:
            random.Random(f"{self.options.seed} {epoch}").shuffle(order)  # noqa: S311
        count = math.ceil(len(order) / size)
        ends = [len(order) * part // count for part in range(count + 1)]
        yield from (order[start:end] for start, end in pairwise(ends))


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device."""
    return {name: one.to(device) if isinstance(one, Tensor) else one for name, one in batch.items()}
