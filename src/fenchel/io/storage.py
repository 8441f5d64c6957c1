"""State files with a digest, a kind and a version, checked by a schema; tables in Parquet files of a folder.

Import pydantic's ``Field`` from here: if pydantic is missing, the error names the extra that installs it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import json
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from fenchel.arguments import reason_of, shown
from fenchel.errors import InputError, MissingExtraError, require_packages
from fenchel.io.runs import atomic_path, write_text

try:
    from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
    from pydantic import Field as Field
except ImportError as error:
    raise MissingExtraError("pydantic", "hf") from error

if TYPE_CHECKING:
    import polars


PREFIX = "sha256:"


def digest_of_bytes(content: bytes) -> str:
    """``sha256:`` followed by the SHA-256 of the content in hexadecimal."""
    return PREFIX + hashlib.sha256(content).hexdigest()


def tensors_digest(batches: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of tensors with their names, shapes and dtypes, and of JSON values.

    Args:
        batches: Dense tensors by name, and other values, which are hashed as JSON.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> import torch
        >>> one = [{"x": torch.zeros(2)}]
        >>> tensors_digest(one) == tensors_digest([{"x": torch.zeros(2)}])
        True
        >>> tensors_digest(one) == tensors_digest([{"y": torch.zeros(2)}])
        False
    """
    digest = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(batch.items()):
            if not isinstance(value, Tensor):
                value = torch.frombuffer(
                    bytearray(json.dumps(value, default=repr).encode()), dtype=torch.uint8
                )
            digest.update(f"{len(name)} {name} {tuple(value.shape)} {value.dtype} ".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        digest.update(b";")
    return digest.hexdigest()


def json_text(value: Any) -> str:
    """Canonical JSON: sorted keys, neither NaN nor infinity."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically."""
    write_text(path, json_text(value))


# Configuration of ``Record`` and of saved dataclasses: no conversion of types, no unknown fields.
STRICT = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

# An integer from 0.
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]

# An integer from 1: a size, or a number that is counted from 1.
PositiveInt = Annotated[int, Field(ge=1, lt=2**63)]

# A seed of ``torch.manual_seed``.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]

# A positive finite number.
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# A string that is not empty.
NonEmptyStr = Annotated[str, Field(min_length=1)]

# A SHA-256 in hexadecimal.
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]


class Record(BaseModel):
    """A saved JSON object: these fields, of these types and no others."""

    model_config = STRICT


class OpenRecord(Record):
    """A :class:`Record` that may have more fields, such as those of a later version."""

    model_config = ConfigDict(extra="allow")


class Mismatch(Exception):  # noqa: N818 - users see an InputError
    """A value does not match its schema; the message has its path, the value and what is expected."""


@cache
def _adapter(expected: Any) -> TypeAdapter[Any]:
    """Cached: building it takes longer than a check."""
    return TypeAdapter(expected)


def check_json(expected: Any, value: Any, where: str = "") -> Any:
    """Validate a value that was read from JSON.

    Args:
        expected: A :class:`Record`, or another type that pydantic knows.
        value: The value.
        where: Its path, for the error.

    Returns:
        The value as an object of that type.

    Raises:
        Mismatch: Naming the first place at which it differs from the type.
    """
    try:
        return _adapter(expected).validate_json(json.dumps(value))  # JSON has lists where we have tuples
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        for part in first["loc"]:
            where += f"[{part}]" if isinstance(part, int) else f"{'.' if where else ''}{part[:60]}"
        if first["type"] == "missing":
            raise Mismatch(f"{where} is missing; expected it to be there") from None
        if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            raise Mismatch(f"{where} is there; expected no field of that name") from None
        reason = first["msg"].removeprefix("Input should be ")
        reason = reason[0].lower() + reason[1:]
        raise Mismatch(f"{where or 'it'} is {shown(first['input'])}; expected {reason}") from None


# Why a file is refused whose digest does not match its content.
CHANGED = "is damaged or was changed after it was written: its digest does not match its content"

# Maximum size of a JSON file; larger ones were not written by fenchel and are not read.
_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class Form:
    """A kind of state file.

    Attributes:
        name: Its name, such as ``saved audit``, which is written into the file.
        version: Version of its content, likewise.
        schema: Schema of its JSON.
        advice: A sentence on what to do if such a file cannot be used.
    """

    name: str
    version: int
    schema: type[Record]
    advice: str

    def refused(self, path: Path, reason: str) -> InputError:
        """The error for a file that cannot be used: its path, the reason, and the advice."""
        return InputError(f"{path} {reason}. {self.advice}")

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turn a ``Mismatch`` within the block into an ``InputError`` that names the file."""
        try:
            yield
        except Mismatch as error:
            raise self.refused(path, f"does not have fenchel's format: {error}") from error


_ADDED_KEYS = frozenset({"format", "schema", "digest"})


def _sealed(named: Mapping[str, Any]) -> str:
    """The text of a JSON file with the digest of the text without the digest."""
    # Encoded once. Only a key of the outermost object is after one space: texts have no line ends in JSON.
    before, _, after = json_text({**named, "digest": ""}).partition('\n "digest": "",')
    digest = digest_of_bytes(f"{before}{after}".encode())
    return f'{before}\n "digest": "{digest}",{after}'


def _is_sealed(content: bytes, found: Any) -> bool:
    """Whether a JSON file, which says ``found``, has the digest that was written into it."""
    digest = found.get("digest") if isinstance(found, dict) else None
    # A version control system may have changed all line ends of a copy.
    before, _, after = content.replace(b"\r\n", b"\n").partition(f'\n "digest": "{digest}",'.encode())
    return digest_of_bytes(before + after) == digest


def write_document(path: Path, form: Form, values: Mapping[str, Any]) -> None:
    """Write a JSON file with a digest, atomically.

    Args:
        path: The file.
        form: Its form.
        values: Its content; ``format``, ``schema`` and ``digest`` are added.

    Raises:
        OutputError: If it cannot be written; the old file is then unchanged.
    """
    write_text(path, _sealed({**values, "format": form.name, "schema": form.version}))


def read_document(path: Path, form: Form) -> dict[str, Any]:
    """Read a file of ``write_document``, provided that no byte has changed since.

    Args:
        path: The file.
        form: Its form.

    Returns:
        The values, without what ``write_document`` added.

    Raises:
        InputError: If the file does not exist, was changed after it was written, is of another form, or does not match
            the schema.
    """
    content = _content(path, form)
    try:
        found: Any = json.loads(content.decode("utf-8"))
        is_sealed = _is_sealed(content, found)
        if not is_sealed:
            json_text(found).encode("utf-8")  # raises on 1e999 and on half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise form.refused(
            path, f"is not a {form.name}: it is not valid JSON ({reason_of(error)})"
        ) from error
    if not isinstance(found, dict):
        raise form.refused(path, f"is not a {form.name}: it holds a {type(found).__name__}, not an object")
    values = {name: value for name, value in found.items() if name not in _ADDED_KEYS}
    kind, version = found.get("format"), found.get("schema")
    if "digest" not in found and kind is None:
        raise form.refused(
            path, f"is not a {form.name} of this version of fenchel: its digest is missing or damaged"
        )
    if not is_sealed:
        raise form.refused(path, CHANGED)
    if kind != form.name:
        raise form.refused(path, f"holds a {kind}, not a {form.name}")
    if version != form.version:
        written = "an earlier" if isinstance(version, int) and version < form.version else "a later"
        raise form.refused(
            path,
            f"has schema {version!r} of a {form.name}, of {written} version of fenchel; this one reads schema "
            f"{form.version}",
        )
    with form.reading(path):
        check_json(form.schema, values)
    return values


def _content(path: Path, form: Form) -> bytes:
    """The bytes of a regular file of at most ``_MAX_BYTES``; reading another kind may never end.

    Raises:
        InputError: If the file does not exist, is not a regular file, or is larger.
    """
    try:
        result = path.stat()
        if not stat.S_ISREG(result.st_mode):
            raise form.refused(path, "is not a file")
        if result.st_size > _MAX_BYTES:
            raise form.refused(
                path, f"has {result.st_size} bytes; expected at most {_MAX_BYTES} for a {form.name}"
            )
        return path.read_bytes()
    except OSError as error:
        raise form.refused(path, f"cannot be read: {reason_of(error)}") from error


# A part is written after the first batch with which there are this many rows.
ROWS_IN_A_PART = 1 << 18

# File name of a part: its number and the first digits of its digest.
PartName = Annotated[str, Field(pattern=r"^[0-9]{5,9}-[0-9a-f]{16}\.parquet\z")]

_DIGITS = 16


def polars_module() -> Any:
    """The package polars.

    Raises:
        MissingExtraError: If it is not installed.
    """
    require_packages("hf", "polars")
    import polars

    return polars


def _digits_of(content: bytes) -> str:
    """The digest in the name of a part."""
    return digest_of_bytes(content).removeprefix(PREFIX)[:_DIGITS]


class ParquetTable:
    """Parts of a table in a folder, and the rows of the next part.

    A part is written to a temporary file and renamed; its name ends with the digest of its content.

    Args:
        folder: Folder of the parts; created with the first.
        parts: Paths of the existing parts.
    """

    def __init__(self, folder: Path, parts: Iterable[Path] = ()) -> None:
        self.folder, self.parts = folder, list(parts)
        self._waiting: list[polars.DataFrame] = []

    def add(self, frames: Iterable[polars.DataFrame]) -> None:
        """Add rows, which ``write`` writes."""
        self._waiting += frames

    @classmethod
    def temporary(cls) -> ParquetTable:
        """An empty table in a folder that is removed when Python exits: lazy frames may read it until then."""
        folder = Path(tempfile.mkdtemp(prefix="fenchel-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return cls(folder / "rows")

    @classmethod
    def read(cls, folder: Path, names: Iterable[str], *, check: bool = True) -> ParquetTable:
        """The table of these parts of a folder.

        Args:
            folder: The folder.
            names: File names of the parts, as ``names`` gave them.
            check: Whether to check that every part exists and has the digest in its name.

        Raises:
            InputError: Naming the first part that does not.
        """
        table = cls(folder, [folder / name for name in names])
        for path in table.parts if check else ():
            advice = "Restore it from a copy, or run again with --overwrite."
            try:
                content = path.read_bytes()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {reason_of(error)}. {advice}") from error
            if _digits_of(content) != path.stem.rpartition("-")[2]:
                raise InputError(f"{path} {CHANGED}. {advice}")
        return table

    @property
    def names(self) -> list[str]:
        """File names of the parts."""
        return [path.name for path in self.parts]

    @property
    def full(self) -> bool:
        """Whether the unwritten rows fill a part."""
        return sum(map(len, self._waiting)) >= ROWS_IN_A_PART

    def write(self) -> None:
        """Write the unwritten rows as a part.

        Raises:
            OutputError: If it cannot be written; the rows are kept.
        """
        if not any(map(len, self._waiting)):
            return
        file = io.BytesIO()
        rows = polars_module().concat(self._waiting)
        rows.write_parquet(file, compression="zstd", compression_level=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{len(self.parts):05}-{_digits_of(file.getvalue())}.parquet"
        with atomic_path(path) as temporary:
            temporary.write_bytes(file.getvalue())
        self.parts.append(path)
        self._waiting = []

    def scan(self) -> polars.LazyFrame:
        """All written rows of at least one part, lazily."""
        return polars_module().scan_parquet(self.parts, glob=False)  # the folder may have any name

    def rows(self) -> polars.DataFrame:
        """All rows, those that are not written last."""
        pl = polars_module()
        return pl.concat([*(pl.read_parquet(path, glob=False) for path in self.parts), *self._waiting])

    def copy_to(self, folder: Path) -> ParquetTable:
        """Copy the parts to another folder, except those that are already there."""
        folder.mkdir(parents=True, exist_ok=True)
        copy = ParquetTable(folder, [folder / name for name in self.names])
        for path, there in zip(self.parts, copy.parts, strict=True):
            if not there.exists():
                with atomic_path(there) as temporary:
                    shutil.copyfile(path, temporary)
        return copy

    def remove_others(self) -> None:
        """Remove other parts in the folder, complete or not, such as those of an interrupted audit."""
        own = {path.name for path in self.parts}
        for path in self.folder.glob("*.parquet*"):
            if path.name not in own:
                path.unlink(missing_ok=True)
