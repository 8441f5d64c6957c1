"""Files of state: with a digest, a kind and a version, and checked by a schema.

JSON is checked by pydantic models, tensors by :class:`TensorSchema`. ``Field`` is pydantic's; imported from here, a
missing pydantic is said with what installs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from fenchel.arguments import reason_of
from fenchel.errors import InputError, MissingExtraError
from fenchel.io.runs import atomic_path, write_text

try:
    from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
    from pydantic import Field as Field
except ImportError as error:
    raise MissingExtraError("pydantic", "hf") from error


PREFIX = "sha256:"


def digest_of_bytes(content: bytes) -> str:
    """``sha256:`` and the hexadecimal digits of the content's SHA-256."""
    return PREFIX + hashlib.sha256(content).hexdigest()


def json_text(value: Any) -> str:
    """JSON that is the same bytes for the same content: sorted keys, neither NaN nor infinity."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically."""
    write_text(path, json_text(value))


def parse_json(content: bytes) -> Any:
    """The value of UTF-8 JSON that ``json_text`` could have written, in whatever layout.

    Args:
        content: The bytes.

    Returns:
        The value.

    Raises:
        InputError: If it is no JSON, or holds what two readers may take for different things: a key twice, NaN or an
            infinity, half of a surrogate pair, an integer of thousands of digits, or nesting beyond measure. The
            message says what, without a file's name.

    Example:
        >>> parse_json(b'{"alpha": 1.5}')
        {'alpha': 1.5}
        >>> parse_json(b'{"alpha": 1, "alpha": 2}')
        Traceback (most recent call last):
        ...
        fenchel.errors.InputError: it has the key 'alpha' twice
    """
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_without_repetition)
        json_text(value).encode("utf-8")  # 1e999 is an infinity, and half of a surrogate pair is no character
    except InputError:
        raise
    except RecursionError as error:
        raise InputError("it is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"it is no JSON ({reason_of(error)})") from error
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"it has the key {twice[:60]!r} twice")
    return result


_LONGEST_SHOWN = 60

STRICT = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
"""These fields, of these types and no others: what :class:`Record` and dataclasses that are saved are checked by."""

NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number from 0 on."""

PositiveInt = Annotated[int, Field(ge=1, lt=2**63)]
"""A whole number from 1 on: a size, or a place that is counted from 1."""

Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
"""What ``torch.manual_seed`` takes."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above 0."""

NonEmptyStr = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
"""The hexadecimal digits of a SHA-256."""


class Record(BaseModel):
    """What is saved as a JSON object: these fields, of these types and no others."""

    model_config = STRICT


class OpenRecord(Record):
    """A :class:`Record` that may have more fields, such as those of a later version."""

    model_config = ConfigDict(extra="allow")


class Mismatch(Exception):  # noqa: N818 - it is not what users see
    """A value is not what its schema says.

    Args:
        where: Its place, such as ``manifest.alpha``.
        found: What it is.
        expected: What it should be.
    """

    def __init__(self, where: str, found: object, expected: str) -> None:
        shown = found if isinstance(found, Shown) else repr(found)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[:_LONGEST_SHOWN]}..."
        super().__init__(f"{where or 'it'} is {shown}; expected {expected}")


class Shown(str):
    """A description of a value, shown as it is and not as a string."""

    __slots__ = ()


@cache
def _adapter(expected: Any) -> TypeAdapter[Any]:
    """Made once: making it takes longer than a check."""
    return TypeAdapter(expected)


def check_json(expected: Any, value: Any, where: str = "") -> Any:
    """Check a value that was read from JSON.

    Args:
        expected: A :class:`Record`, or another type that pydantic knows.
        value: The value.
        where: Its place, for the error.

    Returns:
        The value as an object of that type.

    Raises:
        Mismatch: If it is of another type; of several places that differ, the first is named.
    """
    try:
        return _adapter(expected).validate_json(json.dumps(value))  # JSON has lists where we have tuples
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        for part in first["loc"]:
            where += (
                f"[{part}]" if isinstance(part, int) else f"{'.' if where else ''}{part[:_LONGEST_SHOWN]}"
            )
        if first["type"] == "missing":
            raise Mismatch(where, Shown("missing"), "it to be there") from None
        if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
            raise Mismatch(where, Shown("there"), "no field of that name") from None
        reason = first["msg"].removeprefix("Input should be ")
        raise Mismatch(where, first["input"], reason[0].lower() + reason[1:]) from None


CHANGED = "is damaged or was changed after it was written: its digest is not that of its content"
"""What is wrong with a file whose digest says otherwise than its content."""

_MOST_BYTES = 1 << 28
"""Of a document; more is another program's, and is not read."""


@dataclass(frozen=True)
class Form:
    """A kind of file of state.

    Attributes:
        name: What a file of it is called, ``saved audit``; it is written into the file.
        version: Of what stands in it.
        schema: What its JSON holds.
        advice: What to do where a file of this form cannot be used: a sentence.
    """

    name: str
    version: int
    schema: type[Record]
    advice: str

    def refused(self, path: Path, reason: str) -> InputError:
        """The error of a file that cannot be used: its name, why, and what to do."""
        return InputError(f"{path} {reason}. {self.advice}")

    def unsealed(self, path: Path) -> InputError:
        """The error of a file without a digest."""
        return self.refused(
            path,
            f"is no {self.name} that fenchel wrote, or an earlier version did: it has no digest, or a damaged one",
        )

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turns what a check says into one line that names the file.

        Args:
            path: What is being read.

        Raises:
            InputError: In place of any ``Mismatch``.
        """
        try:
            yield
        except Mismatch as error:
            raise self.refused(path, f"is not what fenchel writes: {error}") from error

    def content(self, path: Path, most: int | None = None) -> bytes:
        """The bytes of a file; what is no regular file could be read without end.

        Args:
            path: The file.
            most: How many there may be.

        Raises:
            InputError: If there is no such file, it is something else, or it is larger.
        """
        try:
            result = path.stat()
            if not stat.S_ISREG(result.st_mode):
                raise self.refused(path, "is not a file")
            if most is not None and result.st_size > most:
                raise self.refused(path, f"has {result.st_size} bytes, and a {self.name} at most {most}")
            return path.read_bytes()
        except OSError as error:
            raise self.refused(path, f"cannot be read: {reason_of(error)}") from error

    def check(self, path: Path, name: Any, version: Any, values: Any) -> None:
        """Refuses another kind of file, another version of it, and what its schema refuses.

        Raises:
            InputError: If anything differs.
        """
        if name != self.name:
            raise self.refused(path, f"holds a {name}, not a {self.name}")
        if version != self.version:
            written = "an earlier" if isinstance(version, int) and version < self.version else "a later"
            raise self.refused(
                path,
                f"has schema {version!r} of a {self.name}, of {written} version of fenchel; this one reads schema "
                f"{self.version}",
            )
        with self.reading(path):
            check_json(self.schema, values)


_OWN_KEYS = frozenset({"format", "schema", "digest"})


def sealed_text(form: Form, values: Mapping[str, Any]) -> str:
    """The text of a sealed document: its values, its form, and the digest of the text without the digest."""
    return _sealed({**values, "format": form.name, "schema": form.version})


def _sealed(named: dict[str, Any]) -> str:
    return json_text({**named, "digest": digest_of_bytes(json_text(named).encode("utf-8"))})


def write_document(path: Path, form: Form, values: Mapping[str, Any]) -> None:
    """Write a sealed JSON file, atomically.

    Args:
        path: The file.
        form: What it is.
        values: What it holds; ``format``, ``schema`` and ``digest`` are added.

    Raises:
        OutputError: If it cannot be written; the old file is then intact.
    """
    write_text(path, sealed_text(form, values))


def read_document(path: Path, form: Form, *, unsealed_version: int | None = None) -> dict[str, Any]:
    """Read what ``write_document`` wrote, and believe it only if not a byte has changed since.

    Args:
        path: The file; it is never changed.
        form: What it has to be.
        unsealed_version: A version of the form that had no digest yet and is read all the same, as published results
            are.

    Returns:
        The values, without what ``write_document`` added.

    Raises:
        InputError: If it is not there, was changed after it was written, is something else, or does not hold what the
            form says.
    """
    content = form.content(path, _MOST_BYTES)
    try:
        result = parse_json(content)
    except InputError as error:
        raise form.refused(path, f"is no {form.name}: {error}") from error
    if not isinstance(result, dict):
        raise form.refused(path, f"is no {form.name}: it holds a {type(result).__name__}, not an object")
    values = {name: value for name, value in result.items() if name not in _OWN_KEYS}
    kind, version = result.get("format"), result.get("schema")
    if "digest" in result or kind is not None:
        sealed = _sealed({name: value for name, value in result.items() if name != "digest"})
        # A copy whose line ends a version control system has rewritten throughout still says the same.
        if content.replace(b"\r\n", b"\n") != sealed.encode("utf-8"):
            raise form.refused(path, CHANGED)
    elif unsealed_version is not None and version == unsealed_version:
        kind, version = form.name, form.version
    else:
        raise form.unsealed(path)
    form.check(path, kind, version, values)
    return values


# The metadata of a safetensors file has one entry, whose text begins with the digest of the file with zeros for its
# digits, and goes on with what describes the tensors.
_KEY = "fenchel"
_SEAL = re.compile(rf'"{_KEY}":"{PREFIX}([0-9a-f]{{64}}) '.encode())
_ZEROS = "0" * 64


def write_tensors(path: Path, form: Form, tensors: Mapping[str, Tensor], description: Any) -> None:
    """Write tensors and what describes them into one safetensors file, so that they cannot disagree.

    Args:
        path: The file.
        form: What it is.
        tensors: Contiguous tensors by name.
        description: Anything that is JSON; kept in the file's metadata.

    Raises:
        OutputError: If it cannot be written; the old file is then intact.
    """
    named = {"format": form.name, "schema": form.version, "description": description}
    unsealed = f"{PREFIX}{_ZEROS} {json_text(named)}"
    content = _safetensors().save(dict(tensors), metadata={_KEY: unsealed})
    digest = digest_of_bytes(content).removeprefix(PREFIX)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.replace(_ZEROS.encode(), digest.encode(), 1))


def read_tensors(path: Path, form: Form) -> tuple[dict[str, Tensor], Any]:
    """Read what ``write_tensors`` wrote, and believe it only if not a byte has changed since.

    Args:
        path: The file; it is never changed.
        form: What it has to be.

    Returns:
        The tensors by name and the description, which is what the form's schema says.

    Raises:
        InputError: If the file is not there, was changed after it was written, is something else, or its description is
            not what the form says.
        MissingExtraError: If safetensors is not installed.
    """
    safetensors = _safetensors()
    content = form.content(path)
    seal = _SEAL.search(content)
    if seal is None:
        raise form.unsealed(path)
    begin, end = seal.span(1)
    if digest_of_bytes(content[:begin] + _ZEROS.encode() + content[end:]) != PREFIX + seal[1].decode():
        raise form.refused(path, CHANGED)
    try:
        tensors: dict[str, Tensor] = safetensors.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        named = parse_json(header["__metadata__"][_KEY].partition(" ")[2].encode("utf-8"))
        kind, version, description = named["format"], named["schema"], named["description"]
    except Exception as error:  # what is sealed was written by us, or by somebody who can compute a digest
        raise form.refused(path, f"is no {form.name}: {reason_of(error)}") from error
    form.check(path, kind, version, description)
    return tensors, description


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "hf") from error
    return safetensors.torch


@dataclass(frozen=True)
class TensorSchema:
    """What a tensor has to be.

    Attributes:
        dtypes: One of them.
        shape: Its sizes: numbers, or names that stand for the same number in every tensor that is checked together.
        least: What no entry may be below; None for no bound.
        finite: Whether infinities are refused; NaN always is.
        rising: Whether every entry must be above the one before.
    """

    dtypes: tuple[torch.dtype, ...]
    shape: tuple[int | str, ...]
    least: float | None = None
    finite: bool = True
    rising: bool = False


def check_tensors(
    tensors: Mapping[str, Tensor], schema: Mapping[str, TensorSchema], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """See that tensors are those of a schema, no more and no fewer.

    Args:
        tensors: By name.
        schema: By name.
        sizes: What named dimensions are, as far as known.

    Returns:
        What all named dimensions are.

    Raises:
        Mismatch: If a tensor is missing, unknown, or not what the schema says.
    """
    missing, unknown = sorted(set(schema) - set(tensors)), sorted(set(tensors) - set(schema))
    if missing:
        raise Mismatch(f"tensor {missing[0]}", Shown("missing"), "it to be there")
    if unknown:
        raise Mismatch(f"tensor {unknown[0]}", Shown("there"), "no tensor of that name")
    known = dict(sizes or {})
    for name, expected in schema.items():
        _check_tensor(f"tensor {name}", tensors[name], expected, known)
    return known


def _check_tensor(where: str, tensor: Tensor, expected: TensorSchema, sizes: dict[str, int]) -> None:
    if tensor.dtype not in expected.dtypes:
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in expected.dtypes)
        raise Mismatch(where, Shown(f"of {str(tensor.dtype).removeprefix('torch.')}"), names)
    shape = tuple(tensor.shape)
    if len(shape) == len(expected.shape):
        for name, size in zip(expected.shape, shape, strict=True):
            if isinstance(name, str):
                sizes.setdefault(name, size)
    wanted = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in expected.shape)
    if shape != wanted:
        raise Mismatch(where, Shown(f"of shape {shape}"), f"({', '.join(map(str, wanted))})")
    if not tensor.numel():
        return
    if tensor.is_floating_point():
        if expected.finite and not bool(tensor.isfinite().all()):
            raise Mismatch(where, Shown("not finite everywhere"), "finite numbers")
        if bool(tensor.isnan().any()):
            raise Mismatch(where, Shown("not a number (NaN) somewhere"), "numbers")
    if expected.least is not None and not bool((tensor >= expected.least).all()):
        raise Mismatch(
            where, Shown(f"{tensor.min().item()} somewhere"), f"at least {expected.least:g} everywhere"
        )
    if expected.rising and not bool((tensor[1:] > tensor[:-1]).all()):
        raise Mismatch(where, Shown("not in rising order"), "each entry above the one before")
