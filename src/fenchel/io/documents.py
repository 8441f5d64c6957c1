"""Documents from plain text, tables (CSV, TSV, JSON, Parquet), data sets of the hub, or strings."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import hashlib
import json
import logging
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, number_of, reason_of, shown, unwritable
from fenchel.errors import FenchelError, InputError, require_packages

# The name of the text that comes with the package.
DEMO = "demo"

_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_JSON_LINES = (".jsonl", ".ndjson")
_TABLES = (".csv", ".tsv", ".json", ".parquet", *_JSON_LINES)
_FILE_ENDINGS = (".txt", ".text", ".md", *_TABLES, *_COMPRESSED)
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(@[\w.-]+)?")


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        index: Its index among the documents of the source, from 0, which decides its shard.
        number: Its number in the source, from 1: the line of a text or jsonl file, the row of a table.
        text: The text; never blank.
        target: The target text of an encoder-decoder model, if any.
        before: Share of the source before the document.
        after: Share of the source up to its end; None if the length of the source is unknown.
    """

    index: int
    number: int
    text: str
    target: str | None = None
    before: float = 0.0
    after: float | None = None

    def fraction_at(self, share: float) -> float | None:
        """Share of the source up to this share of the document; None if the length of the source is unknown."""
        return None if self.after is None else self.before + share * (self.after - self.before)


# Number from 1, values by column, and the share of the source up to the end of the row.
Rows = Iterator[tuple[int, Mapping[str, Any], float | None]]


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
    rows: Callable[[], Rows]
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
            yield Document(index, number, text, target[0] if target else None, before, fraction)
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
        raise missing_column(column, row, where)
    text = row[column]
    if label and isinstance(text, int):
        return json.dumps(text)  # true and false as in a table of cells
    if not isinstance(text, str):
        kind = "null" if text is None else f"of type {type(text).__name__}"
        expected = "text or a whole number" if label else "text"
        raise InputError(f"{where}: column {column!r} is {kind}, not {expected}. Fix or drop the row.")
    return checked_text(text, where)


def missing_column(column: str, present: Collection[str], where: str) -> InputError:
    """The error for a column that a table has not; ``where`` is the table, or a row of it."""
    return InputError(
        f"{where} has no column {shown(column)}; it has {listed_names(present)}. Name one of them, with an "
        "option such as --text-column or --first-column."
    )


def checked_text(text: str, where: str) -> str:
    """The text, which ``where`` locates in the message.

    Raises:
        InputError: If it cannot be written in UTF-8, or has a NUL character.
    """
    if reason := unwritable(text):
        raise InputError(f"{where} is not valid text: {reason}. Fix or drop it.")
    return text


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
        source: Path of a plain text file (one document a line) or of a table (``.csv``; ``.tsv``, without quotes;
            ``.jsonl``; ``.json``, also an array; ``.parquet``), all but the last also compressed (``.gz``, ``.bz2``,
            ``.xz``); or a name of the ``datasets`` library, ``NAME[:CONFIG][@SPLIT]``; or ``demo``, a short text that
            comes with the package (a file of that name is ``./demo``); or strings, one document each.
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
    if "target_column" in named and "label_column" in named:
        raise InputError(
            "a target column and a label column were given, but a classifier has no target texts. Leave one out."
        )
    columns = list({"text_column": "text", **named}.values())
    whole, columned = {"whole_file": whole_file}, {"columned": bool(named)}
    if not isinstance(source, str | Path):
        is_table = hasattr(source, "columns")  # pandas would give the names of its columns
        if is_table or isinstance(source, bytes | Mapping | type) or not isinstance(source, Iterable):
            raise InputError(
                f"texts is {shown(source)}; expected a path, a name of a dataset, or strings, such as a column."
            )
        _refuse("Python strings", **whole, **columned)
        return _from_strings(source)
    path, name = checked("text", source), str(source)
    if source == DEMO:
        path = Path(__file__).with_name("demo.txt")
    elif isinstance(source, str) and _is_dataset(source, path):
        _refuse(f"dataset {name!r}", **whole)
        return Documents(name, partial(_dataset_rows, name, columns), "row", columns, label=label_column)
    readable_file(path)
    if _ending(path) in _TABLES:
        _refuse(f"table {name}", **whole)
        rows, unit = partial(table_rows, path, columns), "line" if _ending(path) in _JSON_LINES else "row"
    else:
        _refuse(f"plain text file {name}", **columned)
        rows, unit = partial(_line_rows, path, whole_file=whole_file), "line"
    return Documents(name, rows, unit, columns, lambda: file_sha256(path), label_column)


def has_columns(source: str) -> bool:
    """Whether a source of texts is a file with columns, by its name.

    Example:
        >>> has_columns("films.parquet"), has_columns("films.csv.gz"), has_columns("films.txt")
        (True, True, False)
    """
    return _ending(Path(source)) in _TABLES


def _ending(path: Path) -> str:
    """The ending of a file, less that of its compression."""
    endings = map(str.lower, reversed(path.suffixes))
    return next((ending for ending in endings if ending not in _COMPRESSED), "")


def _is_dataset(source: str, path: Path) -> bool:
    # An ending alone, such as csv, is no dataset either: datasets would read files of the current folder.
    looks_like_a_file = f".{source.lower()}".endswith(_FILE_ENDINGS) or source.startswith((".", "~", "/"))
    return not looks_like_a_file and _DATASET.fullmatch(source) is not None and not path.exists()


def _refuse(source: str, *, whole_file: bool = False, columned: bool = False) -> None:
    if whole_file:
        raise InputError(
            f"{source} cannot be read as a whole file: only a plain text file can. Leave whole_file out."
        )
    if columned:
        raise InputError(
            f"{source} has no columns. Leave the text, target and label columns out, or give a table, such as csv."
        )


def _from_strings(texts: Iterable[str]) -> Documents:
    length = len(texts) if isinstance(texts, Sequence) else None

    def rows() -> Rows:
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


def readable_file(path: Path) -> Path:
    """The path of a file that is not empty.

    Raises:
        InputError: If the file does not exist, is a folder or a device, cannot be read, or is empty.
    """
    try:
        if not path.is_file():
            wrong = "is not a regular file, which can be read twice" if path.exists() else "does not exist"
            wrong = "is a folder, not a file" if path.is_dir() else wrong
            raise InputError(f"{path} {wrong}. Give a file of text or a table, or in Python a list of texts.")
        with path.open("rb") as file:
            first = file.read(4)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {reason_of(error).lower()}.") from None
    if first in (b"", codecs.BOM_UTF8):
        raise InputError(f"{path} is empty. Give a file with at least one line of text.")
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table_rows(path: Path, columns: Sequence[str] = ()) -> Rows:
    """The rows of a table in the format that its name ends in, by default separated by tabs.

    Args:
        path: The file.
        columns: The columns that are used. Default: all of a Parquet file.

    Returns:
        Number, values by column, of which there may be more, and share of the file, for each row.

    Raises:
        InputError: If the file cannot be read.
        MissingExtraError: If ``pyarrow`` is needed and not installed.
    """
    ending = _ending(path)
    if ending == ".parquet":
        return _read(partial(_open_parquet, path, columns), f"{path} cannot be read", _DAMAGED)
    if ending == ".json" and next(filter(str.strip, _lines(path)), "").lstrip().startswith("["):
        return _array_rows(path)
    return _json_rows(path) if ending in (".json", *_JSON_LINES) else _cell_rows(path, columns)


def _lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """The lines of a file with their ends, which are translated unless ``newline`` is empty."""
    opener = _COMPRESSED.get(path.suffix.lower(), open)
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            for line in file:
                number += 1
                yield line
    except UnicodeDecodeError as error:
        number += 1 + error.object.count(b"\n", 0, error.start)
        raise InputError(
            f"line {number} of {path} is not UTF-8, as byte {error.object[error.start]:#04x} shows ({error.reason}). "
            "If it is text, convert it with its encoding, such as LATIN1 or UTF-16: iconv -f ENCODING -t UTF-8"
        ) from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}. {_DAMAGED}") from None


def _line_rows(path: Path, *, whole_file: bool = False) -> Rows:
    if whole_file:
        yield 1, {"text": "".join(_lines(path))}, 1.0
        return
    share = _share_of_lines(path)
    for number, line in enumerate(_lines(path), start=1):
        yield number, {"text": line.removesuffix("\n")}, share(number)


def _share_of_lines(path: Path) -> Callable[[int], float | None]:
    """Share of a file up to the end of a line; None if the file is compressed."""
    if path.suffix.lower() in _COMPRESSED:
        return lambda _: None
    with path.open("rb") as file:
        ends = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return lambda number: min(1.0, number / max(1, ends))


def _json_rows(path: Path) -> Rows:
    """The objects of the lines."""
    for number, row, fraction in _line_rows(path):
        if row["text"].strip():
            where = f"line {number} of {path}"
            yield number, _json_object(_json_value(row["text"], where), where), fraction


def _array_rows(path: Path) -> Rows:
    """The objects of a JSON array."""
    array = _json_value("".join(_lines(path)), str(path))
    for number, found in enumerate(array, start=1):
        yield number, _json_object(found, f"row {number} of {path}"), number / len(array)


_JSON_EXPECTED = "expected an object in each line, or in a .json file an array of objects"


def _json_value(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        reason = reason_of(error).replace("line 1 ", "")  # of the text, which may be another line of the file
        raise InputError(f"{where} cannot be read as JSON ({reason}); {_JSON_EXPECTED}.") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {shown(twice)} twice")
    return found


def _json_object(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{where} is a JSON {type(found).__name__}; {_JSON_EXPECTED}.")
    return found


def _cell_rows(path: Path, columns: Sequence[str]) -> Rows:
    """The rows after the first line, which names the columns. Cells are text as it is written."""
    form: dict[str, Any] = {} if _ending(path) == ".csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    csv.field_size_limit(2**31 - 1)  # a setting of all readers; the default refuses long texts
    reader = csv.reader(_lines(path, newline=""), strict=True, **form)
    rows, share, number = filter(None, reader), _share_of_lines(path), 0
    try:
        names = next(rows, [])
        _check_columns(columns, names, path)
        for number, cells in enumerate(rows, start=1):
            if len(cells) != len(names):
                raise InputError(
                    f"row {number} of {path}, in line {reader.line_num}, has {number_of(len(cells), 'cell')}, but the "
                    f"first line names {number_of(len(names), 'column')}. Fix the row; in CSV put texts with commas in "
                    "quotes."
                )
            yield number, dict(zip(names, cells, strict=True)), share(reader.line_num)
    except csv.Error as error:
        raise InputError(
            f"{path} cannot be read after row {number}, up to line {reader.line_num}: {error}. Check the quotes."
        ) from None


def _check_columns(columns: Sequence[str], names: list[str], path: Path) -> None:
    for column in columns:
        if column not in names:
            raise missing_column(column, names, str(path))
        if names.count(column) > 1:
            raise InputError(
                f"{path} has {names.count(column)} columns {shown(column)}. Rename all but one of them."
            )


def _open_parquet(path: Path, columns: Sequence[str]) -> _Opened:
    """Batches of few rows; no group of rows is held as a whole."""
    require_packages("report", "pyarrow")
    from pyarrow import parquet

    file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    _check_columns(columns, file.schema_arrow.names, path)
    batches = file.iter_batches(_PARQUET_ROWS_AT_ONCE, columns=list(columns) or None)
    return (batch.to_pydict() for batch in batches), file.metadata.num_rows


def _dataset_rows(name: str, columns: Sequence[str]) -> Rows:
    """The rows of a ``datasets`` stream; the default split is ``train`` or the only one."""
    front, _, split = name.partition("@")
    path, _, config = front.partition(":")

    def opened() -> _Opened:
        require_packages("hf", "datasets")
        import datasets

        splits: Any
        with (
            _one_line(
                f"{name!r} is neither a local file nor a dataset that can be opened",
                "Check the spelling and the network, or give the path of a text or a table.",
            ),
            _without_repeated_requests(path),
        ):
            splits = datasets.load_dataset(path, config or None, streaming=True)
        chosen = split or ("train" if "train" in splits else next(iter(splits)) if len(splits) == 1 else "")
        if chosen not in splits:
            raise InputError(
                f"dataset {path!r} has no split {chosen or 'train'!r}; it has {', '.join(map(repr, splits))}. "
                f"Name one of them, such as {front}@{next(iter(splits))}."
            )
        rows = splits[chosen]
        info = (rows.info.splits or {}).get(str(chosen))
        if set(columns) <= set(rows.column_names or ()):
            rows = rows.select_columns(list(columns))
        return rows.iter(_ROWS_AT_ONCE), info.num_examples if info is not None else None

    advice = "Check the network, then continue from the last checkpoint with --resume."
    return _read(opened, f"reading dataset {name!r} stopped", advice)


@contextlib.contextmanager
def _without_repeated_requests(path: str) -> Iterator[None]:
    """Use only the cache of datasets if the hub does not answer at once: requests are repeated for half a minute."""
    from datasets import config
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    before, unreachable = config.HF_HUB_OFFLINE, None
    try:
        if not before:
            HfApi().dataset_info(path, timeout=20)
    except (HfHubHTTPError, HFValidationError):
        pass  # load_dataset says why
    except Exception as error:  # no network, in whichever way the client says so
        config.HF_HUB_OFFLINE, unreachable = True, error
    try:
        yield
    except Exception as error:
        if unreachable is None:
            raise
        raise ConnectionError(f"the hub does not answer ({reason_of(unreachable)})") from error
    finally:
        config.HF_HUB_OFFLINE = before


_DAMAGED = "Check that the file is complete and has the format that its name ends in."
_ROWS_AT_ONCE, _PARQUET_ROWS_AT_ONCE = 256, 64

# Values by column for some rows after the other, and the number of all rows, if known; there may be fewer.
_Opened = tuple[Iterator[Mapping[str, Sequence[Any]]], int | None]


def _read(opened: Callable[[], _Opened], failed: str, advice: str) -> Rows:
    """The rows of a source; its errors become one line: what failed, the reason and advice."""
    with _one_line(failed, advice):
        batches, total = opened()
    number = 0
    while True:
        with _one_line(failed, advice):
            batch = next(batches, None)
        if batch is None:
            return
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield number, dict(zip(batch, values, strict=True)), min(1.0, number / total) if total else None


@contextlib.contextmanager
def _one_line(failed: str, advice: str) -> Iterator[None]:
    """Errors of a reader, which are of many types and which ``datasets`` logs as well, become one line."""
    log = logging.getLogger("datasets.packaged_modules")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except FenchelError:
        raise
    except Exception as error:
        raise InputError(f"{failed}: {reason_of(error)}. {advice}") from None
    finally:
        log.setLevel(level)
