"""Rows of text: from plain text, jsonl, Parquet and data sets of the hub."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from fenchel.arguments import shown
from fenchel.errors import InputError, MissingExtraError

__all__ = [
    "Columns",
    "Row",
    "check_unpacking",
    "dataset_rows",
    "decoded",
    "file_lines",
    "file_sha256",
    "file_text",
    "jsonl_rows",
    "listed_names",
    "parquet_rows",
    "readable_file",
]

# Text shrinks to a tenth, logs and drawings to a fiftieth; zeros to a thousandth.
_LARGEST_RATIO = 250
_UNSUSPECTED = 1 << 20


def check_unpacking(where: str, unpacked: int, packed: int) -> None:
    """Refuses what unpacks to more than 250 times its size, where that is more than a mebibyte.

    Args:
        where: The file, for the message.
        unpacked: Bytes that came out so far, or are announced.
        packed: Bytes that they were packed into.

    Raises:
        InputError: If that is too much.

    Example:
        >>> check_unpacking("a.gz", unpacked=10**9, packed=10**6)
        Traceback (most recent call last):
        fenchel.errors.InputError: a.gz unpacks to more than 250 times its size, to 1,000,000,000 bytes or more, as no \
text and no photographs do; it was not read further. If that is meant, store it uncompressed.
    """
    if unpacked > _UNSUSPECTED and unpacked > _LARGEST_RATIO * max(1, packed):
        raise InputError(
            f"{where} unpacks to more than {_LARGEST_RATIO} times its size, to {unpacked:,} bytes or more, as no "
            "text and no photographs do; it was not read further. If that is meant, store it uncompressed."
        )


_MARK = b"\xef\xbb\xbf"  # what some editors put before UTF-8
_BLOCK = 1 << 20
_LONGEST = 1 << 28


def readable_file(path: Path) -> Path:
    """Checks that a path is a file with something in it.

    Args:
        path: A path that was given as a source of text.

    Returns:
        The path.

    Raises:
        InputError: If there is no such file, it is a folder or a device, it cannot be read, or it is empty.
    """
    try:
        if path.is_dir():
            raise InputError(
                f"{path} is a folder, not a file. Give one file of text, or merge audits of several."
            )
        if not path.exists():
            raise InputError(f"{path} does not exist. Give the path of a text, jsonl or parquet file.")
        if not path.is_file():
            raise InputError(
                f"{path} is not a regular file. It is read more than once, so save the text in a file."
            )
        with path.open("rb") as file:
            first = file.read(len(_MARK) + 1)
    except PermissionError:
        raise InputError(f"{path} cannot be read: permission denied.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    if first in (b"", _MARK):
        raise InputError(f"{path} is empty. Give a file with at least one line of text.")
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes as they are on disk, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def file_lines(path: Path, longest: int = _LONGEST) -> Iterator[tuple[int, str, float]]:
    r"""Reads a UTF-8 file line by line; lines end with ``\n``.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.
        longest: How many bytes a line may have.

    Yields:
        The line's number from 1, its text without the line's end, and the share of the file read with it.

    Raises:
        InputError: If the bytes are not UTF-8 or not gzip, a line is too long, or the file unpacks to more than any
            text does.
    """
    size = path.stat().st_size or 1
    offset = 0
    with path.open("rb") as raw:
        file = _decompressed(raw, path)
        try:
            number = 0
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise InputError(
                        f"line {number} of {path} has more than {longest:,} bytes; expected one document a line, each "
                        "shorter than that. Cut it into several."
                    )
                text = decoded(line, path, line=number, offset=offset)
                offset += len(line)
                if file is not raw:
                    check_unpacking(str(path), offset, raw.tell())
                yield (
                    number,
                    text.rstrip("\r\n"),
                    min(1.0, raw.tell() / size if file is not raw else offset / size),
                )
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file: {error}.") from None


def file_text(path: Path) -> str:
    """Reads a whole UTF-8 file.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.

    Returns:
        Its text.

    Raises:
        InputError: If the bytes are not UTF-8 or not gzip, or too many.
    """
    with path.open("rb") as raw:
        try:
            content = _decompressed(raw, path).read(_LONGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file: {error}.") from None
    if len(content) > _LONGEST:
        raise InputError(
            f"{path} holds more than {_LONGEST:,} bytes; expected one document, shorter than that. Cut it into "
            "several, or have it read line by line (without --whole-file)."
        )
    return decoded(content, path, line=1, offset=0)


def decoded(content: bytes, path: Path, *, line: int, offset: int) -> str:
    """Decodes a part of a UTF-8 file.

    Args:
        content: The bytes.
        path: The file, for the message.
        line: Number of the line (from 1) that the part begins with.
        offset: How many bytes of the file are before the part.

    Returns:
        The text, without a byte order mark.

    Raises:
        InputError: If the bytes are not UTF-8; it says which byte of which line is wrong.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        raise InputError(
            f"{path} is not UTF-8: line {line} has byte {content[error.start]:#04x} where no character can "
            f"have it, {offset + error.start} bytes into the file. "
            f"Convert the file first, for example with: iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def _decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw


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
