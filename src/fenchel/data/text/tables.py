"""Texts in a named column of a table: jsonl, parquet, or a dataset of the ``datasets`` library."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fenchel.arguments import shown
from fenchel.data.text.lines import file_lines
from fenchel.errors import InputError, MissingExtraError

__all__ = ["Columns", "Row", "dataset_rows", "jsonl_rows", "listed_names", "parquet_rows"]

_ROWS_AT_ONCE = 256
_NAMES_LISTED = 10


class Row(NamedTuple):
    """A text, its number in the source (from 1), its target, and the share of the source read with it."""

    number: int
    text: str
    target: str | None = None
    fraction: float | None = None


@dataclass(frozen=True)
class Columns:
    """The columns that hold the texts and, for encoder-decoder models, what is to be written for each."""

    text: str = "text"
    target: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.text,) if self.target is None else (self.text, self.target)

    def check(self, present: Collection[str], where: str) -> None:
        """Checks that the columns are there.

        Args:
            present: The columns that there are.
            where: What they are the columns of, for the message.

        Raises:
            InputError: If one is missing; it lists those that there are.
        """
        for name in self.names:
            if name not in present:
                option = "text column" if name == self.text else "target column"
                raise InputError(
                    f"{where} has no column {shown(name)}; it has {listed_names(present)}. "
                    f"Name one of them as the {option}."
                )

    def row(self, record: Mapping[str, Any], number: int, where: str, fraction: float | None) -> Row:
        """Takes the texts out of a record.

        Args:
            record: Column names to values.
            number: The record's number in the source, from 1.
            where: The record, for the message.
            fraction: Share of the source read so far.

        Returns:
            The row.

        Raises:
            InputError: If a column is missing, or its value is not text.
        """
        self.check(list(record), where)
        for name in self.names:
            if not isinstance(record[name], str):
                kind = "null" if record[name] is None else f"of type {type(record[name]).__name__}"
                raise InputError(f"{where}: column {name!r} is {kind}, not text. Mend or drop the row.")
        target = None if self.target is None else record[self.target]
        return Row(number, record[self.text], target, fraction)


def listed_names(names: Collection[str]) -> str:
    """Names in quotes, the first ten of them.

    Example:
        >>> listed_names(["a", "b"]), listed_names([str(k) for k in range(99)]).split(", ")[-1]
        ("'a', 'b'", "'9' and 89 more")
    """
    first = ", ".join(shown(name) for name in islice(names, _NAMES_LISTED))
    return (first or "none") + (
        f" and {len(names) - _NAMES_LISTED} more" if len(names) > _NAMES_LISTED else ""
    )


def jsonl_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Reads a file with one JSON object a line; blank lines are skipped.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.
        columns: The keys that hold the texts.

    Yields:
        A row for each object, numbered by its line.

    Raises:
        InputError: If a line is not a JSON object, or has no text under the key.
    """
    for number, line, fraction in file_lines(path):
        if not line.strip():
            continue
        where = f"line {number} of {path}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{where} is not JSON: {error.msg} at character {error.pos + 1}. A jsonl file has one object "
                "a line."
            ) from None
        except RecursionError:
            raise InputError(
                f"{where} is nested too deeply to be read. A jsonl file has one object a line, with its texts in keys."
            ) from None
        except ValueError:  # Python reads no number of more than 4,300 digits
            raise InputError(
                f"{where} has a number of thousands of digits, which cannot be read. Mend or drop the line."
            ) from None
        if not isinstance(record, dict):
            raise InputError(
                f"{where} is a JSON {type(record).__name__}, not an object with a key {columns.text!r}. "
                "A jsonl file has one object a line."
            )
        yield columns.row(record, number, where, fraction)


def parquet_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Reads a parquet file a few hundred rows at a time.

    Args:
        path: The file.
        columns: The columns that hold the texts.

    Yields:
        A row for each row of the table.

    Raises:
        InputError: If the file is not parquet, a column is missing, or a value is not text.
        MissingExtraError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "report") from None
    number = 0
    try:
        columns.check(parquet.read_schema(path).names, str(path))
        # As a dictionary, a text that is in many rows is held once.
        with parquet.ParquetFile(path, read_dictionary=list(columns.names)) as file:
            total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns.names)):
                for place in range(batch.num_rows):
                    number += 1
                    # A row at a time: a page of a megabyte can hold one long text hundreds of times.
                    record = {name: batch.column(name)[place].as_py() for name in columns.names}
                    yield columns.row(record, number, f"row {number} of {path}", number / total)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"row {number} of {path} is not UTF-8: {error.reason}. Mend or drop the row."
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole parquet file: {_first_line(error)}") from None


def dataset_rows(name: str, columns: Columns) -> Iterator[Row]:
    """Streams a dataset of the ``datasets`` library; nothing is stored.

    Args:
        name: ``NAME``, ``NAME:CONFIG``, ``NAME@SPLIT`` or ``NAME:CONFIG@SPLIT``. Without a split, ``train``
            is read, or the only split that there is.
        columns: The columns that hold the texts.

    Yields:
        A row for each row of the dataset.

    Raises:
        InputError: If there is no such dataset, configuration or split, it cannot be reached, or a value is
            not text.
        MissingExtraError: If datasets is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "hf") from None
    front, _, split = name.partition("@")
    path, _, config = front.partition(":")
    try:
        splits = datasets.load_dataset(path, config or None, streaming=True)
    except Exception as error:
        raise InputError(
            f"{name!r} is neither a file here nor a dataset that can be opened: {_first_line(error)} "
            "Check the spelling and the network, or give the path of a text, jsonl or parquet file."
        ) from None
    chosen = split or ("train" if "train" in splits else next(iter(splits)) if len(splits) == 1 else "")
    if chosen not in splits:
        raise InputError(
            f"dataset {path!r} has no split {chosen or 'train'!r}; it has {', '.join(map(repr, splits))}. "
            f"Name one of them, such as {front}@{next(iter(splits))}."
        )
    rows = splits[chosen]
    info = (rows.info.splits or {}).get(str(chosen))
    total = info.num_examples if info is not None else None
    for number, record in enumerate(_reachable(rows, name), start=1):
        fraction = min(1.0, number / total) if total else None
        yield columns.row(record, number, f"row {number} of {name}", fraction)


def _reachable(rows: Any, name: str) -> Iterator[Mapping[str, Any]]:
    records = iter(rows)
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:
            raise InputError(
                f"dataset {name!r} could not be read on: {_first_line(error)} "
                "Check the network, then go on from the last checkpoint with --resume."
            ) from None
        yield record


def _first_line(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
