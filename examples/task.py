"""What a task of the examples is, what it can be told, and how its data are read."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import datasets
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


@dataclass
class Options:
    """What every example can be told."""

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
    mixed_precision: str = option("no", "no, bf16 or fp16", choices=("no", "bf16", "fp16"))
    checkpoint_seconds: float = option(60.0, "seconds between checkpoints within an epoch")
    quiet: bool = option(False, "show no progress")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "width", "depth", "heads", "longest"):
            if not getattr(self, name, 1) > 0:
                raise InputError(
                    f"{name} is {getattr(self, name)}; expected a number above 0. Give --{name} a larger one."
                )
        for name, largest in (("warmup", 1.0), ("dropout", 0.99)):
            if not 0 <= getattr(self, name, 0) <= largest:
                raise InputError(f"{name} is {getattr(self, name)}; expected a share from 0 to {largest}.")
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule is {self.schedule!r}; expected one of {', '.join(SCHEDULES)}.")


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


def read_splits(
    data: str, names: Sequence[str] = ("train", "validation", "test"), *, train: bool = True
) -> datasets.DatasetDict:
    """A dataset of the hub, a folder with a Parquet file for each split, or one file of text or rows.

    Args:
        data: Name or path; a file ends in ``.txt``, ``.jsonl`` or ``.parquet`` and becomes the split ``train``.
        names: Of the splits that are read of a folder.
        train: Whether there has to be a split for training.

    Raises:
        InputError: If it is not there, or has no split for training.
    """
    folder = Path(data)
    try:
        if folder.is_file():
            builder = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}.get(folder.suffix)
            if builder is None:
                raise InputError(
                    f"{folder} ends in none of .txt, .jsonl and .parquet. Convert it to one of these."
                )
            found = datasets.load_dataset(builder, data_files={"train": str(folder)})
        elif folder.is_dir():
            files = {name: str(folder / f"{name}.parquet") for name in names}
            files = {name: file for name, file in files.items() if Path(file).is_file()}
            if not files:
                raise InputError(
                    f"{folder} holds none of {', '.join(f'{name}.parquet' for name in names)}. Save the dataset there "
                    "with datasets' Dataset.to_parquet, or use --data toy."
                )
            found = datasets.load_dataset("parquet", data_files=files)
        else:
            found = datasets.load_dataset(data)
    except InputError:
        raise
    except Exception as error:  # datasets raises errors of many kinds
        there = folder.exists()
        what = (
            "cannot be read"
            if there
            else "is neither a folder nor a dataset that the Hugging Face hub gives here"
        )
        raise InputError(
            f"{data!r} {what} ({_line((error.__cause__ if there else None) or error)}). Give a folder with "
            "train.parquet, the name of a dataset, or --data toy, which needs no file."
        ) from error
    assert isinstance(found, datasets.DatasetDict)  # noqa: S101 - no split was asked for
    if train and "train" not in found:
        raise InputError(f"{data} has the splits {', '.join(map(str, found))}; one named train is needed.")
    return found


def check_columns(found: datasets.DatasetDict, needed: Sequence[str], data: str) -> None:
    """Refuse data without a column.

    Raises:
        InputError: Naming the columns that are missing, and those that are there.
    """
    for split, rows in found.items():
        missing = [name for name in needed if name not in rows.column_names]
        if missing:
            raise InputError(
                f"{data}, {split}, has no column {', '.join(missing)}; it has {', '.join(rows.column_names)}. Rename "
                "the columns of the data."
            )


def validation_and_test(found: datasets.DatasetDict, share: float = 0.1) -> datasets.DatasetDict:
    """The same data with the splits ``train``, ``validation`` and ``test``: missing ones are parts of the first.

    Raises:
        InputError: If the first has too few rows for that.
    """
    found = datasets.DatasetDict(found)
    for name in ("test", "validation"):
        if name not in found:
            if len(found["train"]) < 2:
                raise InputError(f"there are too few rows to hold out some for {name}. Give more.")
            parts = found["train"].train_test_split(share, seed=0)
            found["train"], found[name] = parts["train"], parts["test"]
    return found


def label_names(rows: datasets.Dataset, column: str) -> list[str]:
    """Names of the classes of a column, of ``ClassLabel`` or of integers.

    Raises:
        InputError: If they are neither.
    """
    feature = rows.features[column]
    if isinstance(feature, datasets.ClassLabel):
        return list(feature.names)
    if not feature.dtype.startswith(("int", "uint")):
        raise InputError(
            f"column {column} has values of {feature.dtype}; expected whole numbers for classes."
        )
    return [str(number) for number in range(max(rows[column]) + 1)]


def check_labels(found: datasets.DatasetDict, column: str, classes: int, data: str) -> None:
    """Refuse a row whose label is none of the classes of the training data.

    Raises:
        InputError: Naming the row.
    """
    for split, rows in found.items():
        for number, label in enumerate(rows[column]):
            if label is None or not 0 <= label < classes:
                raise InputError(
                    f"{data}, {split}, row {number}, has the {column} {label}; expected 0 to {classes - 1}. Remove the "
                    "row."
                )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device."""
    return {name: one.to(device) if isinstance(one, Tensor) else one for name, one in batch.items()}


def _line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
