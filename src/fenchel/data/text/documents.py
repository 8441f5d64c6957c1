"""Documents of text from a file, a dataset or Python strings, streamed one at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.data.text.lines import file_lines, file_sha256, file_text, readable_file
from fenchel.data.text.tables import Columns, Row, dataset_rows, jsonl_rows, parquet_rows
from fenchel.errors import InputError

__all__ = ["DEMO", "Document", "Documents", "check_text", "open_documents"]

DEMO = "demo"
"""The name of the text that comes with the package."""

_TABLE_ENDINGS = (".csv", ".tsv")
_FILE_ENDINGS = (".txt", ".text", ".md", ".jsonl", ".json", ".ndjson", ".parquet", ".gz", *_TABLE_ENDINGS)
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(@[\w.-]+)?")


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        index: Its place among the documents of the source, from 0, by which shards are dealt out.
        number: Its number in the source, from 1: the line of a text or jsonl file, the row of a table.
        text: The text; never blank.
        target: What an encoder-decoder model is to write for it, if the source says.
        before: Share of the source that lies before the document, if the source knows its length.
        after: Share of the source up to its end.
    """

    index: int
    number: int
    text: str
    target: str | None = None
    before: float | None = None
    after: float | None = None

    def fraction_at(self, share: float) -> float | None:
        """Share of the source read with this share of the document, if the source knows its length."""
        if self.before is None or self.after is None:
            return None
        return self.before + share * (self.after - self.before)


class Documents:
    """A source of documents, read anew at every pass.

    Args:
        description: The source as it was given.
        rows: Opens the source and gives its texts; blank ones are skipped here.
        sha256: Hashes the content, or None where it cannot be known before it is read.
    """

    def __init__(
        self, description: str, rows: Callable[[], Iterator[Row]], sha256: Callable[[], str] | None = None
    ) -> None:
        self.description = description
        self._rows = rows
        self._sha256 = sha256
        self._hash: str | None = None

    @property
    def text_sha256(self) -> str | None:
        """SHA-256 of a file's bytes, or of a list's texts; None for a dataset and for an iterator."""
        if self._hash is None and self._sha256 is not None:
            self._hash = self._sha256()
        return self._hash

    def __iter__(self) -> Iterator[Document]:
        """Gives the documents in order.

        Raises:
            InputError: If the source cannot be read, or holds no text.
        """
        index, before = 0, 0.0
        for row in self._rows():
            if not row.text.strip():
                continue
            for text in (row.text, row.target):
                check_text(text or "", f"document {row.number} of {self.description}")
            start = None if row.fraction is None else before
            yield Document(index, row.number, row.text, row.target, start, row.fraction)
            index, before = index + 1, row.fraction or 0.0
        if index == 0:
            raise InputError(
                f"{self.description} holds no text: every document is blank. Give at least one with words."
            )


def check_text(text: str, where: str) -> None:
    """Refuses a string that is no text.

    Args:
        text: What was read.
        where: For the message.

    Raises:
        InputError: If it holds half of a surrogate pair, which JSON can write, and which no tokenizer or file takes.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} is no text: character {error.start + 1} is {text[error.start]!a}, one half of a surrogate "
            "pair. Mend or drop it."
        ) from None


def open_documents(
    source: str | Path | Iterable[str],
    *,
    whole_file: bool = False,
    text_column: str | None = None,
    target_column: str | None = None,
) -> Documents:
    """Opens a source of texts; nothing but its beginning is read yet.

    Args:
        source: Path of a plain text file (one document a line), a ``.jsonl`` or ``.parquet`` file (text and
            jsonl also as ``.gz``); or a name of the ``datasets`` library, ``NAME[:CONFIG][@SPLIT]``; or
            ``demo``, a short text that comes with the package (a file of that name is ``./demo``); or
            strings, one document each.
        whole_file: Take a plain text file for one document.
        text_column: Column of a table that holds the texts. Default: ``text``.
        target_column: Column of a table that holds what an encoder-decoder model is to write for each text.

    Returns:
        The documents, to be iterated over as often as wanted (once, if ``source`` is an iterator).

    Raises:
        InputError: If there is no such file or it cannot be read, or an option does not suit the source.

    Example:
        >>> [(document.number, document.text) for document in open_documents(["a tree", " ", "a bird"])]
        [(1, 'a tree'), (3, 'a bird')]
    """
    text_column, target_column = checked("text_column", text_column), checked("target_column", target_column)
    columns = Columns(text_column or "text", target_column)
    columned = text_column is not None or target_column is not None
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
        return Documents(name, lambda: dataset_rows(name, columns))
    readable_file(path)
    endings = [ending for ending in path.suffixes if ending != ".gz"]
    ending = endings[-1].lower() if endings else ""
    if ending == ".parquet":
        _refuse(f"parquet file {name}", whole_file=whole_file)
        return Documents(name, lambda: parquet_rows(path, columns), lambda: file_sha256(path))
    if ending in (".jsonl", ".ndjson", ".json"):
        _refuse(f"jsonl file {name}", whole_file=whole_file)
        return Documents(name, lambda: jsonl_rows(path, columns), lambda: file_sha256(path))
    if ending in _TABLE_ENDINGS:
        raise InputError(
            f"{name} is a table of columns ({ending}), which is not read as text. Give its texts as plain text (one "
            "document a line), jsonl or parquet."
        )
    _refuse(f"plain text file {name}", columned=columned)
    rows = _whole if whole_file else _lines
    return Documents(name, lambda: rows(path), lambda: file_sha256(path))


def _lines(path: Path) -> Iterator[Row]:
    for number, line, fraction in file_lines(path):
        yield Row(number, line, None, fraction)


def _whole(path: Path) -> Iterator[Row]:
    yield Row(1, file_text(path), None, 1.0)


def _from_strings(texts: Iterable[str]) -> Documents:
    length = len(texts) if isinstance(texts, Sequence) else None

    def rows() -> Iterator[Row]:
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise InputError(
                    f"text {number} is a {type(text).__name__}, not a string. Give one string a document."
                )
            yield Row(number, text, None, number / length if length else None)

    def sha256() -> str:
        digest = hashlib.sha256()
        for row in rows():
            content = row.text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()

    return Documents("Python strings", rows, None if length is None else sha256)


def _is_dataset(source: str, path: Path) -> bool:
    looks_like_a_file = source.lower().endswith(_FILE_ENDINGS) or source.startswith((".", "~", "/"))
    return not path.exists() and not looks_like_a_file and _DATASET.fullmatch(source) is not None


def _refuse(what: str, *, whole_file: bool = False, columned: bool = False) -> None:
    if whole_file:
        raise InputError(
            f"{what} cannot be read as a whole file: only a plain text file can. Leave whole_file out."
        )
    if columned:
        raise InputError(
            f"{what} has no columns. Leave the text and target columns out, or give jsonl or parquet."
        )
