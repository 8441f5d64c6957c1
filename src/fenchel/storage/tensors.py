"""Tensors and what describes them in one safetensors file, sealed with a digest over every byte of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from fenchel.errors import InputError, MissingExtraError
from fenchel.storage.digest import HEX_DIGITS, PREFIX, digest_of_bytes, digest_of_file
from fenchel.storage.files import atomic_path, guarded_writing, reason_of
from fenchel.storage.form import CHANGED, Form, refused, size_of_file
from fenchel.storage.strict_json import json_text, parse_json

__all__ = ["read_tensors", "write_tensors"]

# A safetensors file is the length of its header in 8 bytes, the header as JSON, and the tensors. The header begins with
# the metadata: one entry, whose text begins with the digest and goes on with what describes the tensors.
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_KEY = "fenchel"
_MARK = f'"{_KEY}":"{PREFIX}'.encode()
_DIGEST = re.compile(re.escape(_MARK) + rb"([0-9a-f]{%d}) " % HEX_DIGITS)


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
    unsealed = f"{PREFIX}{'0' * HEX_DIGITS} {json_text(named)}"
    content = _safetensors().save(dict(tensors), metadata={_KEY: unsealed})
    begin = content.index(_MARK) + len(_MARK)
    digest = digest_of_bytes(content).removeprefix(PREFIX).encode()
    with atomic_path(path) as temporary, guarded_writing(path), temporary.open("wb") as file:
        for piece in (memoryview(content)[:begin], digest, memoryview(content)[begin + HEX_DIGITS :]):
            file.write(piece)


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
    with _opened(path, form) as opened:
        description = _description(path, form, opened.metadata() or {})
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return tensors, description


@contextlib.contextmanager
def _opened(path: Path, form: Form) -> Iterator[Any]:
    """The file, with every byte as it was written."""
    _safetensors()
    from safetensors import SafetensorError, safe_open

    size = size_of_file(path, form)
    try:
        with path.open("rb") as file:
            _check_seal(path, form, file, size)
        with safe_open(str(path), framework="pt") as opened:
            yield opened
    except OSError as error:
        raise refused(path, form, f"cannot be read: {reason_of(error)}") from error
    except SafetensorError as error:
        raise refused(path, form, f"is no {form.name}: {reason_of(error)}") from error


def _description(path: Path, form: Form, metadata: Mapping[str, str]) -> Any:
    try:
        _, _, described = metadata[_KEY].partition(" ")
        named = parse_json(described.encode("utf-8"))
        found = named["format"], named["schema"], named["description"]
    except (InputError, KeyError, TypeError) as error:
        raise refused(path, form, f"is no {form.name}: {reason_of(error)}") from error
    form.check_kind(path, *found[:2])
    with form.reading(path):
        form.schema(found[2], "")
    return found[2]


def _check_seal(path: Path, form: Form, file: BinaryIO, size: int) -> None:
    header = _header(path, form, file, size)
    found = _DIGEST.search(header)
    if found is None:
        _refuse_unsealed(path, form, header)
        return
    if digest_of_file(file, _LENGTH_BYTES + found.start(1)) != PREFIX + found[1].decode():
        raise refused(path, form, CHANGED)


def _header(path: Path, form: Form, file: BinaryIO, size: int) -> bytes:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(size - _LENGTH_BYTES, _LONGEST_HEADER):
        raise refused(path, form, f"is no {form.name}: it is damaged, or not a file of tensors at all")
    return file.read(length)


def _refuse_unsealed(path: Path, form: Form, header: bytes) -> None:
    try:
        metadata = parse_json(header)["__metadata__"]
        earlier = parse_json(metadata[_KEY].encode("utf-8"))["schema"]
    except (InputError, KeyError, TypeError, AttributeError):
        raise refused(
            path, form, f"is no {form.name} that fenchel wrote: it is damaged, or another program's"
        ) from None
    raise refused(
        path,
        form,
        f"has schema {earlier!r} and no digest, as an earlier version of fenchel wrote them; this one reads schema "
        f"{form.version}",
    )


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "hf") from error
    return safetensors.torch
