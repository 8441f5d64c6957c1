"""How the examples read data: datasets of the hub, folders of Parquet files, single files; and words of texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fenchel.errors import InputError

SPLITS = ("train", "validation", "test")


def read_splits(
    data: str, names: Sequence[str] = SPLITS, *, train: bool = True, toy: bool = True
) -> datasets.DatasetDict:
    """A dataset of the hub, a folder with a Parquet file for each split, or one file of text or rows.

    Args:
        data: Name or path; a file ends in ``.txt``, ``.jsonl`` or ``.parquet`` and becomes the split ``train``.
        names: Of the splits that are read of a folder; other than the default, all have to be there.
        train: Whether there has to be a split for training.
        toy: Whether the script has ``--data toy``, which errors then advise.

    Raises:
        InputError: If it is not there, or has no split that is needed.
    """
    path, builder, files = Path(data), data, None
    advice = ", or --data toy, which needs no file" if toy else ""
    if path.is_file():
        builder = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}.get(path.suffix)
        files = {"train": str(path)}
    elif path.is_dir():
        builder, places = "parquet", {name: path / f"{name}.parquet" for name in names}
        files = {name: str(file) for name, file in places.items() if file.is_file()}
    if builder is None:
        raise InputError(f"{path} ends in none of .txt, .jsonl and .parquet. Convert it to one of these.")
    if files == {}:
        wanted = ", ".join(f"{name}.parquet" for name in names)
        raise InputError(f"{path} holds none of {wanted}. Write it by Dataset.to_parquet{advice}.")
    try:
        result = datasets.load_dataset(builder, data_files=files)
    except Exception as error:  # datasets raises errors of many kinds
        what, why = "is neither a folder nor a dataset that the Hugging Face hub gives here", error
        if files:
            what, why = "cannot be read", error.__cause__ or error
        said = (str(why).strip().splitlines() or [type(why).__name__])[0][:200]
        raise InputError(
            f"{data!r} {what} ({said}). Give a folder with train.parquet or the name of a dataset{advice}."
        ) from error
    assert isinstance(result, datasets.DatasetDict)  # noqa: S101 - no split was asked for
    needed = names if names != SPLITS else ["train"] * train
    if missing := [name for name in needed if name not in result]:
        there = ", ".join(map(str, result))
        raise InputError(f"{data} has no split {missing[0]}; it has {there}. Give one{advice}.")
    return result


def check_columns(found: datasets.DatasetDict, needed: Sequence[str], data: str) -> None:
    """Refuse data without a column.

    Raises:
        InputError: Naming the columns that are missing, and those that are there.
    """
    for split, rows in found.items():
        missing = [name for name in needed if name not in rows.column_names]
        if missing:
            names, there = ", ".join(missing), ", ".join(rows.column_names)
            raise InputError(f"{data}, {split}, has no column {names}; it has {there}. Rename them.")


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
        what = f"column {column} has values of {feature.dtype}"
        raise InputError(f"{what}; expected whole numbers for classes.")
    return [str(number) for number in range(max(rows[column]) + 1)]


def check_labels(found: datasets.DatasetDict, column: str, classes: int, data: str) -> None:
    """Refuse a row whose label is none of the classes of the training data.

    Raises:
        InputError: Naming the row.
    """
    for split, rows in found.items():
        for number, label in enumerate(rows[column]):
            if label is None or not 0 <= label < classes:
                what = f"{data}, {split}, row {number}, has the {column} {label}"
                raise InputError(f"{what}; expected 0 to {classes - 1}. Remove the row.")


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of whole numbers under one another, with 0 behind the shorter ones."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def learned_words(
    texts: Iterable[str], size: int, special: Sequence[str], least: int = 0, ends: str = "punctuation"
) -> Tokenizer:
    """Knows the most frequent words, in small letters, of what stands between spaces, or between them and punctuation.

    Args:
        texts: What is trained on; ``[UNK]`` stands for words that were left out of them.
        size: How many words are known at most.
        special: What comes first, ``[UNK]`` among them.
        least: How often a word has to be there to be known.
        ends: Of a word: ``punctuation`` (and spaces) or ``spaces``.
    """
    tokenizer: Any = Tokenizer(models.WordLevel(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    parts = {"punctuation": pre_tokenizers.BertPreTokenizer(), "spaces": pre_tokenizers.WhitespaceSplit()}
    tokenizer.pre_tokenizer = parts[ends]
    known = {"vocab_size": size, "min_frequency": least, "special_tokens": list(special)}
    texts = (text.replace("[UNK]", " ") for text in texts)
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(**known, show_progress=False))
    return tokenizer
