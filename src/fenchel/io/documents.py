"""Documents from plain text, jsonl, Parquet, data sets of the hub, or strings."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from fenchel.arguments import checked, reason_of, shown
from fenchel.errors import InputError, require_packages

DEMO = "demo"
"""The name of the text that comes with the package."""

_JSONL_ENDINGS = (".jsonl", ".json", ".ndjson")
_TABLE_ENDINGS = (".csv", ".tsv")
_FILE_ENDINGS = (".txt", ".text", ".md", ".parquet", ".gz", *_JSONL_ENDINGS, *_TABLE_ENDINGS)
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(@[\w.-]+)?")


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        index: Its index among the documents of the source, from 0, which decides its shard.
        number: Its number in the source, from 1: the line of a text or jsonl file, the row of a table.
        text: The text; never blank.
        target: The target text of an encoder-decoder model, if any.
        before: Share of the source before the document; None if the length of the source is unknown.
        after: Share of the source up to its end, likewise.
    """

    index: int
    number: int
    text: str
    target: str | None = None
    before: float | None = None
    after: float | None = None

    def fraction_at(self, share: float) -> float | None:
        """Share of the source up to this share of the document; None if the length of the source is unknown."""
        if self.before is None or self.after is None:
            return None
        return self.before + share * (self.after - self.before)


_Rows = Iterator[tuple[int, Mapping[str, Any], float | None]]
"""Number from 1, values by column, and the share of the source up to the end of the row."""


@dataclass(frozen=True)
class Documents:
    """A source of documents, which is read again at every pass.

    Attributes:
        description: The source as the user gave it.
        rows: Opens the source and yields its rows; those with a blank text are skipped.
        unit: Name of a row: ``line``, ``row`` or ``text``.
        columns: Column of the texts, and of their targets, if any.
        sha256: Hashes the content; None if it is not known before it is read.
        label: The column of classes, whose numbers are converted to text.
    """

    description: str
    rows: Callable[[], _Rows]
    unit: str
    columns: Sequence[str] = ("text",)
    sha256: Callable[[], str] | None = None
    label: str | None = None

    @cached_property
    def text_sha256(self) -> str | None:
        """SHA-256 of a file's bytes, or of a list's texts; None for a dataset and for an iterator."""
        return None if self.sha256 is None else self.sha256()

    def __iter__(self) -> Iterator[Document]:
        """The documents in order.

        Raises:
            InputError: If the source cannot be read, or has no text.
        """
        index, before = 0, 0.0
        for number, row, fraction in self.rows():
            where = f"{self.unit} {number} of {self.description}"
            text, *target = (
                text_of(row, column, where, label=column == self.label) for column in self.columns
            )
            if not text.strip():
                continue
            start = None if fraction is None else before
            yield Document(index, number, text, target[0] if target else None, start, fraction)
            index, before = index + 1, fraction or 0.0
        if index == 0:
            raise InputError(
                f"there is no text in {self.description}: every document is blank. Give at least one with words."
            )


def text_of(row: Mapping[str, Any], column: str, where: str, *, label: bool) -> str:
    """The text in a column of a row, or the name or number of a class; ``where`` locates the row in messages.

    Raises:
        InputError: If there is no such column, or it is not a text.
    """
    if column not in row:
        raise _missing(column, row, where)
    text = row[column]
    if label and isinstance(text, int):
        return str(int(text))
    if not isinstance(text, str):
        kind = "null" if text is None else f"of type {type(text).__name__}"
        expected = "text or a whole number" if label else "text"
        raise InputError(f"{where}: column {column!r} is {kind}, not {expected}. Fix or drop the row.")
    check_text(text, where)
    return text


def _missing(column: str, present: Collection[str], where: str) -> InputError:
    return InputError(
        f"{where} has no column {shown(column)}; it has {listed_names(present)}. Name one of them as the text, "
        "target or label column."
    )


def check_text(text: str, where: str) -> None:
    """Raise if a string cannot be encoded in UTF-8; ``where`` locates it in the message.

    Raises:
        InputError: If it has half of a surrogate pair, which JSON allows, but no tokenizer or file.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} is not valid text: character {error.start + 1} is {text[error.start]!a}, an unpaired surrogate. "
            "Fix or drop it."
        ) from None


_NAMES_LISTED = 10


def listed_names(names: Collection[str]) -> str:
    """The first ten names in quotes, and the number of the others."""
    first = ", ".join(shown(name) for name in islice(names, _NAMES_LISTED))
    more = len(names) - _NAMES_LISTED
    return (first or "none") + (f" and {more} more" if more > 0 else "")


def open_documents(
    source: str | Path | Iterable[str],
    *,
    whole_file: bool = False,
    text_column: str | None = None,
    target_column: str | None = None,
    label_column: str | None = None,
) -> Documents:
    """Open a source of texts; only its beginning is read.

    Args:
        source: Path of a plain text file (one document a line), a ``.jsonl`` or ``.parquet`` file (text and
            jsonl also as ``.gz``); or a name of the ``datasets`` library, ``NAME[:CONFIG][@SPLIT]``; or
            ``demo``, a short text that comes with the package (a file of that name is ``./demo``); or
            strings, one document each.
        whole_file: Take a plain text file for one document.
        text_column: Column of a table that holds the texts. Default: ``text``.
        target_column: Column of a table that holds the target text of an encoder-decoder model.
        label_column: Column of a table that holds the class of each text, by name or number, which is then the
            document's target.

    Returns:
        The documents; they can be iterated over repeatedly unless ``source`` is an iterator.

    Raises:
        InputError: If the file does not exist or cannot be read, or an option does not suit the source.

    Example:
        >>> [(document.number, document.text) for document in open_documents(["a tree", " ", "a bird"])]
        [(1, 'a tree'), (3, 'a bird')]
    """
    options = {"text_column": text_column, "target_column": target_column, "label_column": label_column}
    named = {name: checked(name, value) for name, value in options.items() if value is not None}
    if len({"target_column", "label_column"} & named.keys()) == 2:
        raise InputError(
            "a target column and a label column were given, but a classifier has no target texts. Leave one out."
        )
    columns, columned = list({"text_column": "text", **named}.values()), bool(named)
    if not isinstance(source, str | Path):
        if isinstance(source, bytes | Mapping | type) or not isinstance(source, Iterable):
            raise InputError(f"texts is {shown(source)}; expected a path, a name of a dataset, or strings.")
        _refuse("Python strings", whole_file=whole_file, columned=columned)
        return _from_strings(source)
    path, name = checked("text", source), str(source)
    if source == DEMO:
        path = Path(__file__).with_name("demo.txt")
    elif isinstance(source, str) and _is_dataset(source, path):
        _refuse(f"dataset {name!r}", whole_file=whole_file)
        return Documents(name, lambda: _dataset_rows(name), "row", columns, label=label_column)
    readable_file(path)
    ending = _ending(path)
    if ending in _TABLE_ENDINGS:
        raise InputError(
            f"{name} is a table ({ending}), which cannot be read as text. Give its texts as plain text (one document "
            "per line), jsonl or parquet, such as written by polars.read_csv(...).write_parquet(...)."
        )
    if ending == ".parquet":
        _refuse(f"parquet file {name}", whole_file=whole_file)
        rows, unit = lambda: parquet_rows(path, columns), "row"
    elif ending in _JSONL_ENDINGS:
        _refuse(f"jsonl file {name}", whole_file=whole_file)
        rows, unit = lambda: _jsonl_rows(path), "line"
    else:
        _refuse(f"plain text file {name}", columned=columned)
        rows, unit = lambda: _text_rows(path, whole_file=whole_file), "line"
    return Documents(name, rows, unit, columns, lambda: file_sha256(path), label_column)


def has_columns(source: str) -> bool:
    """Whether a source of texts is a file with columns, by its name.

    Example:
        >>> has_columns("films.parquet"), has_columns("films.jsonl.gz"), has_columns("films.txt")
        (True, True, False)
    """
    return _ending(Path(source)) in (".parquet", *_JSONL_ENDINGS)


def _ending(path: Path) -> str:
    """The ending of a file, less that of its compression."""
    return next((ending.lower() for ending in reversed(path.suffixes) if ending != ".gz"), "")


def _is_dataset(source: str, path: Path) -> bool:
    looks_like_a_file = source.lower().endswith(_FILE_ENDINGS) or source.startswith((".", "~", "/"))
    return not path.exists() and not looks_like_a_file and _DATASET.fullmatch(source) is not None


def _refuse(source: str, *, whole_file: bool = False, columned: bool = False) -> None:
    if whole_file:
        raise InputError(
            f"{source} cannot be read as a whole file: only a plain text file can. Leave whole_file out."
        )
    if columned:
        raise InputError(
            f"{source} has no columns. Leave the text, target and label columns out, or give jsonl or parquet."
        )


def _from_strings(texts: Iterable[str]) -> Documents:
    length = len(texts) if isinstance(texts, Sequence) else None

    def rows() -> _Rows:
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise InputError(
                    f"text {number} is of type {type(text).__name__}, not a string. Give one string per document."
                )
            yield number, {"text": text}, number / length if length else None

    def sha256() -> str:
        digest = hashlib.sha256()
        for _, row, _ in rows():
            content = row["text"].encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()

    return Documents("Python strings", rows, "text", sha256=None if length is None else sha256)


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST = 1 << 28


def readable_file(path: Path) -> Path:
    """The path of a file that is not empty.

    Raises:
        InputError: If the file does not exist, is a folder or a device, cannot be read, or is empty.
    """
    try:
        if path.is_dir():
            raise InputError(
                f"{path} is a folder, not a file. Give one file of text, or merge audits of several."
            )
        if not path.exists():
            raise InputError(
                f"{path} does not exist. Give the path of a text, jsonl or parquet file, or in Python a list of texts."
            )
        if not path.is_file():
            raise InputError(
                f"{path} is not a regular file. It is read more than once, so save the text in a file."
            )
        with path.open("rb") as file:
            first = file.read(len(_BYTE_ORDER_MARK) + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason_of(error).lower()}.") from None
    if first in (b"", _BYTE_ORDER_MARK):
        raise InputError(f"{path} is empty. Give a file with at least one line of text.")
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_lines(
    path: Path, longest: int = _LONGEST, *, whole: bool = False
) -> Iterator[tuple[int, str, float]]:
    r"""Read a UTF-8 file line by line; lines end with ``\n``.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.
        longest: Maximum number of bytes in a line.
        whole: Read the file as one line, with its line ends.

    Yields:
        The line's number from 1, its text without the line's end, and the share of the file up to it.

    Raises:
        InputError: If the bytes are not UTF-8 or not gzip, a line is too long, or the file is compressed more than text
            can be.
    """
    size = path.stat().st_size or 1
    number = offset = 0
    with path.open("rb") as raw:
        file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
        try:
            while line := file.read(longest + 1) if whole else file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    what, each = (path, "") if whole else (f"line {number} of {path}", "a line, each ")
                    raise InputError(
                        f"{what} has more than {longest:,} bytes; expected one document {each}shorter than that. "
                        "Split it."
                    )
                text = _decoded(line, path, line=number, offset=offset)
                offset += len(line)
                if file is not raw:
                    _check_unpacking(path, unpacked=offset, packed=raw.tell())
                fraction = min(1.0, (raw.tell() if whole or file is not raw else offset) / size)
                yield number, text if whole else text.rstrip("\r\n"), fraction
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a complete gzip file: {error}.") from None


# Text is compressed about tenfold, logs and drawings fiftyfold, zeros a thousandfold.
_LARGEST_RATIO = 250
_UNSUSPECTED = 1 << 20


def _check_unpacking(path: Path, unpacked: int, packed: int) -> None:
    if unpacked > _UNSUSPECTED and unpacked > _LARGEST_RATIO * max(1, packed):
        raise InputError(
            f"{path} unpacks to more than {_LARGEST_RATIO} times its size, to {unpacked:,} bytes or more; text does "
            "not, so reading stopped. If it is correct, store it uncompressed."
        )


def _decoded(content: bytes, path: Path, *, line: int, offset: int) -> str:
    """Decode a part of a UTF-8 file, which begins at this line and byte offset, without a byte order mark."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        raise InputError(
            f"{path} is not UTF-8: line {line} has byte {content[error.start]:#04x} at offset {offset + error.start}, "
            f"which is invalid there. Convert the file first, for example with: iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def _text_rows(path: Path, *, whole_file: bool) -> _Rows:
    for number, text, fraction in file_lines(path, whole=whole_file):
        yield number, {"text": text}, fraction


def _jsonl_rows(path: Path) -> _Rows:
    for number, line, fraction in file_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            wrong = f"is not JSON: {error.msg} at character {error.pos + 1}"
        except RecursionError:
            wrong = "is nested too deeply to be read"
        except ValueError:  # Python reads no number of more than 4,300 digits
            wrong = "has a number with thousands of digits, which cannot be read"
        else:
            if isinstance(row, dict):
                yield number, row, fraction
                continue
            wrong = f"is a JSON {type(row).__name__}, not an object with text fields"
        raise InputError(
            f"line {number} of {path} {wrong}. A jsonl file has one object per line; fix or drop the line."
        )


_ROWS_AT_ONCE = 256


@contextlib.contextmanager
def reading_parquet(path: Path) -> Iterator[Any]:
    """``pyarrow.parquet``, whose errors become one line.

    Raises:
        InputError: If the file is not a whole Parquet file.
        MissingExtraError: If pyarrow is not installed.
    """
    require_packages("report", "pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    try:
        yield parquet
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} is not a complete parquet file: {reason_of(error)}.") from None


def parquet_rows(path: Path, columns: Sequence[str]) -> _Rows:
    """The rows of a Parquet file.

    Raises:
        InputError: If a column is missing, or the file cannot be read.
        MissingExtraError: If pyarrow is not installed.
    """
    number = 0
    with reading_parquet(path) as parquet:
        schema = parquet.read_schema(path)
        for column in columns:
            if column not in schema.names:
                raise _missing(column, schema.names, str(path))
        # As a dictionary, a text that is in many rows is held once.
        flat = [column for column in columns if schema.field(column).type.num_fields == 0]
        with parquet.ParquetFile(path, read_dictionary=flat) as file:
            total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns)):
                for index in range(batch.num_rows):
                    number += 1
                    # A row at a time: a page of a megabyte can hold one long text hundreds of times.
                    try:
                        row = {name: batch.column(name)[index].as_py() for name in columns}
                    except UnicodeDecodeError as error:
                        raise InputError(
                            f"row {number} of {path} is not UTF-8: {error.reason}. Fix or drop the row."
                        ) from None
                    yield number, row, number / total


def _dataset_rows(name: str) -> _Rows:
    """The rows of a ``datasets`` stream; the default split is ``train`` or the only one."""
    require_packages("hf", "datasets")
    import datasets

    front, _, split = name.partition("@")
    path, _, config = front.partition(":")
    try:
        splits = datasets.load_dataset(path, config or None, streaming=True)
    except Exception as error:
        raise InputError(
            f"{name!r} is neither a local file nor a dataset that can be opened: {reason_of(error)}. Check the "
            "spelling and the network, or give the path of a text, jsonl or parquet file."
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
    records, number = iter(rows), 0
    while True:
        try:
            row = next(records)
        except StopIteration:
            return
        except Exception as error:
            raise InputError(
                f"reading dataset {name!r} stopped: {reason_of(error)}. Check the network, then continue from the "
                "last checkpoint with --resume."
            ) from None
        number += 1
        yield number, row, min(1.0, number / total) if total else None
