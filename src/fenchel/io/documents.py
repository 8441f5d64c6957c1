"""Documents of texts, and their tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.errors import InputError
from fenchel.io.text import (
    Columns,
    Row,
    dataset_rows,
    file_lines,
    file_sha256,
    file_text,
    jsonl_rows,
    parquet_rows,
    readable_file,
)

__all__ = [
    "DEMO",
    "Document",
    "Documents",
    "check_known",
    "check_text",
    "decoder_start",
    "longest_window",
    "open_documents",
    "padding_token",
    "pieces",
    "special_tokens",
    "token_ids",
]

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


_LONGEST_BY_DEFAULT = 512
_NO_LIMIT = 1_000_000  # tokenizers without a limit of their own report an astronomic one
_PIECE = 1 << 20
# Learned positions of these families start after the padding index, so their tables hold that many fewer
# tokens.
_POSITIONS_AFTER_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "xmod"}
)


def longest_window(tokenizer: Any, config: Any, max_length: int | None) -> int:
    """How many tokens a window may hold, special tokens included.

    Args:
        tokenizer: Its ``model_max_length`` is a default, where it has one.
        config: The model's configuration; its ``max_position_embeddings`` is a limit, where it has one.
        max_length: What was asked for, or None for the default: the smaller of the two, at most 512.

    Returns:
        The length in tokens.

    Raises:
        InputError: If more was asked for than the model has positions.

    Example:
        >>> from types import SimpleNamespace
        >>> tokenizer = SimpleNamespace(model_max_length=256)
        >>> config = SimpleNamespace(max_position_embeddings=512)
        >>> longest_window(tokenizer, config, None)
        256
    """
    positions = _positions(config)
    if max_length is not None:
        length = checked("max_length", max_length)
        if positions is not None and length > positions:
            raise InputError(
                f"max length {length} is more than the model's {positions} positions. Give at most "
                f"{positions}."
            )
        return length
    limits = [
        limit
        for limit in (positions, getattr(tokenizer, "model_max_length", None))
        if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT
    ]
    return min([_LONGEST_BY_DEFAULT, *(int(limit) for limit in limits)])


def _positions(config: Any) -> int | None:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    if getattr(config, "model_type", None) in _POSITIONS_AFTER_PADDING:
        return positions - int(getattr(config, "pad_token_id", None) or 0) - 1
    return positions


def decoder_start(config: Any) -> int | None:
    """The token with which the decoder of an encoder-decoder model starts.

    Args:
        config: The model's configuration.

    Returns:
        The token's id, or None where the model has not both an encoder and a decoder.

    Raises:
        InputError: If there is a decoder and the configuration names no such token.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return None
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    raise InputError(
        "the model's configuration names no token that its decoder starts with: set its "
        "decoder_start_token_id."
    )


def padding_token(tokenizer: Any, config: Any = None) -> int:
    """The token that fills short rows: for padding, else for the end of a text, else the first of all.

    Filled positions are masked and never counted, so any token that the model knows will do.
    """
    known = _vocabulary(config, target=False)
    for name in ("pad_token_id", "eos_token_id"):
        token = getattr(tokenizer, name, None)
        if isinstance(token, int) and (known is None or 0 <= token < known):
            return token
    return 0


def check_known(ids: Sequence[int], tokenizer: Any, config: Any, *, target: bool = False) -> None:
    """Refuses tokens that the model has no embedding for.

    Args:
        ids: Of a text.
        tokenizer: What gave them.
        config: The model's configuration; where it tells no number of tokens, nothing is checked.
        target: Whether they are what an encoder-decoder is to write.

    Raises:
        InputError: Naming the first such token.
    """
    known = _vocabulary(config, target=target)
    if known is None or not ids or 0 <= min(ids) <= max(ids) < known:
        return
    number = next(number for number in ids if not 0 <= number < known)
    if tokenizer is None:
        raise InputError(
            f"there is a token {number}, and the model knows the tokens 0 to {known - 1}. Mend the ids."
        )
    token = tokenizer.convert_ids_to_tokens(number) if hasattr(tokenizer, "convert_ids_to_tokens") else number
    raise InputError(
        f"the tokenizer gives {token!r} the number {number}, and the model knows the tokens 0 to {known - 1}. Use the "
        "tokenizer that the model was trained with, or a model whose embeddings were resized to it."
    )


def _vocabulary(config: Any, *, target: bool) -> int | None:
    """How many tokens a model knows."""
    for name in ("decoder_vocab_size", "vocab_size") if target else ("vocab_size",):
        size = getattr(config, name, None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that a tokenizer puts before and after a text.

    Args:
        tokenizer: A tokenizer of ``transformers``; it is asked about the first probe that is not empty to it.

    Returns:
        Ids of the tokens before and of those after.

    Raises:
        InputError: If the text cannot be found again between its special tokens.
    """
    _check_tokenizer(tokenizer)
    known = getattr(tokenizer, "convert_ids_to_tokens", None)
    probes = ["a", "the", "0", ".", *(known(list(range(min(len(tokenizer), 100)))) if known else ())]
    for probe in probes:
        text = token_ids(tokenizer, probe)
        whole = token_ids(tokenizer, probe, add_special_tokens=True)
        for begin in range(len(whole) - len(text) + 1 if text else 0):
            if whole[begin : begin + len(text)] == text:
                return tuple(whole[:begin]), tuple(whole[begin + len(text) :])
    raise InputError(
        f"{type(tokenizer).__name__} does not put its special tokens around the text, or knows no token at "
        "all, so documents cannot be cut into windows. Give model inputs instead of texts, with tokenizer=None."
    )


def _check_tokenizer(tokenizer: Any) -> None:
    try:
        ids = token_ids(tokenizer, "a")
    except Exception:  # whatever something that is no tokenizer makes of being called like one
        ids = None
    if isinstance(tokenizer, type) or ids is None or not all(isinstance(number, int) for number in ids):
        raise InputError(
            f"tokenizer is {shown(tokenizer)}; expected a tokenizer of transformers, which gives input_ids for a text."
        )


def token_ids(
    tokenizer: Any, text: str, *, add_special_tokens: bool = False, target: bool = False
) -> list[int]:
    """Ids of all the tokens of a text, however long it is.

    Args:
        tokenizer: A tokenizer of ``transformers``.
        text: Any text.
        add_special_tokens: Whether to add the tokens that mark its beginning and end.
        target: Whether the text is what a translation model is to write; some have another vocabulary for
            that.

    Returns:
        The ids.
    """
    options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "verbose": False}
    return list(
        (tokenizer(text_target=text, **options) if target else tokenizer(text, **options))["input_ids"]
    )


def pieces(text: str) -> Iterator[tuple[str, float]]:
    """Cuts a long text at spaces into pieces of a million characters; a tokenizer needs much memory for each.

    Args:
        text: Any text; most are one piece.

    Yields:
        Each piece, and the share of the text that has been given with it.
    """
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            space = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end))
            end = space if space > begin else end
        yield text[begin:end], min(1.0, end / len(text))
        begin = end
