"""JSON files that a later command reads back: sealed with a digest, so that a changed one is not believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.storage.digest import digest_of_bytes
from fenchel.storage.files import reason_of, write_text
from fenchel.storage.form import CHANGED, Form, refused, size_of_file
from fenchel.storage.strict_json import json_text, parse_json

__all__ = ["read_document", "sealed_text", "write_document"]

_MOST_BYTES = 1 << 28
_OWN_KEYS = frozenset({"format", "schema", "digest"})


def sealed_text(form: Form, values: Mapping[str, Any]) -> str:
    """The text of a sealed document: its values, its form, and the digest of the text without the digest."""
    named = {**values, "format": form.name, "schema": form.version}
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
    if (size := size_of_file(path, form)) > _MOST_BYTES:
        raise refused(path, form, f"has {size} bytes, and a {form.name} has at most {_MOST_BYTES}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refused(path, form, f"cannot be read: {reason_of(error)}") from error
    try:
        found = parse_json(content)
    except InputError as error:
        raise refused(path, form, f"is no {form.name}: {error}") from error
    if not isinstance(found, dict):
        raise refused(path, form, f"is no {form.name}: it holds a {type(found).__name__}, not an object")
    if "digest" in found or "format" in found:
        _check_seal(path, form, found, content)
        form.check_kind(path, found.get("format"), found.get("schema"))
    elif unsealed_version is None or found.get("schema") != unsealed_version:
        _refuse_unsealed(path, form, found)
    values = {name: value for name, value in found.items() if name not in _OWN_KEYS}
    with form.reading(path):
        form.schema(values, "")
    return values


def _check_seal(path: Path, form: Form, found: dict[str, Any], content: bytes) -> None:
    unsealed = {name: value for name, value in found.items() if name != "digest"}
    sealed = {**unsealed, "digest": digest_of_bytes(json_text(unsealed).encode("utf-8"))}
    # A copy whose line ends a version control system has rewritten throughout still says the same.
    if content.replace(b"\r\n", b"\n") != json_text(sealed).encode("utf-8"):
        raise refused(path, form, CHANGED)


def _refuse_unsealed(path: Path, form: Form, found: dict[str, Any]) -> None:
    version = found.get("schema")
    if isinstance(version, int) and not isinstance(version, bool) and 0 < version < form.version:
        raise refused(
            path,
            form,
            f"has schema {version} and no digest, as an earlier version of fenchel wrote them; this one reads schema "
            f"{form.version}",
        )
    raise refused(path, form, f"is no {form.name} that fenchel wrote: it has no digest")
