"""Files that are whole or not there, and files of state with a digest, a kind and a version."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fenchel.arguments import reason_of
from fenchel.errors import InputError, MissingExtraError, OutputError
from fenchel.io.schema import Mismatch, Record, check_json

__all__ = [
    "CHANGED",
    "PREFIX",
    "Form",
    "atomic_path",
    "check_writable",
    "digest_of_bytes",
    "guarded_writing",
    "json_text",
    "parse_json",
    "read_document",
    "read_tensors",
    "reason_of",
    "removed_if_empty",
    "sealed_text",
    "write_document",
    "write_json",
    "write_tensors",
    "write_text",
]

PREFIX = "sha256:"


def digest_of_bytes(content: bytes) -> str:
    """``sha256:`` and the hexadecimal digits of the content's SHA-256."""
    return PREFIX + hashlib.sha256(content).hexdigest()


_TEMPORARY_PREFIX = ".fenchel-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NOT_A_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST})


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path to write to, whose content takes the place of ``path`` in one step if nothing goes wrong.

    Args:
        path: The file to be made or replaced; its folder must exist.

    Yields:
        A path in the same folder. Whoever writes it must have closed it at the end.

    Raises:
        OutputError: If the disk is full, the folder is read-only, or the file cannot be written for another
            reason; ``path`` is then as it was.
    """
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{path.name}-{secrets.token_hex(4)}")
    try:
        with guarded_writing(path):
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
            _flush_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, atomically, with line ends as they are in ``text``."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def check_writable(folder: Path, needed_bytes: int = 1 << 20) -> None:
    """Make a folder and see that files can be written into it, before anything expensive is begun.

    What an interrupted run left half written is removed.

    Args:
        folder: Where results are to go.
        needed_bytes: How much must be free.

    Raises:
        OutputError: If the folder cannot be made or written to, or has not that much room.
    """
    with guarded_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{_TEMPORARY_PREFIX}*"):
            if left_over.is_dir():
                shutil.rmtree(left_over)
            else:
                left_over.unlink(missing_ok=True)
        probe = folder / f"{_TEMPORARY_PREFIX}probe-{secrets.token_hex(4)}"
        probe.write_bytes(b"\0")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise OutputError(
            f"{folder} has {free} bytes free and at least {needed_bytes} are needed. "
            "Free some space or choose another folder."
        )


@contextlib.contextmanager
def removed_if_empty(folder: Path | None) -> Iterator[None]:
    """Where the block fails, a folder that was made in it goes again, and so do its parents, if nothing lies in them.

    Args:
        folder: Where results are to go, whether or not it is there; None for nowhere.
    """
    made = (
        [] if folder is None else [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    )
    try:
        yield
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


@contextlib.contextmanager
def guarded_writing(path: Path) -> Iterator[None]:
    """Turns what the operating system says into one line: what was to be written, why not, what to do.

    Args:
        path: What is being written.

    Raises:
        OutputError: In place of any other ``OSError``.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        number = error.errno
        reason, advice = reason_of(error), "Choose another folder"
        if number in _FULL:
            reason = "the disk is full"
            advice = "Free some space, then run the command again, with --resume where it has that"
        elif number in _FORBIDDEN:
            advice = "Choose a folder that you may write to"
        elif number in _NOT_A_FOLDER:
            reason = "there is a file where a folder is expected"
        raise OutputError(
            f"cannot write {path}: {reason}. {advice}; what was written before is intact."
        ) from error


def _flush_folder(folder: Path) -> None:
    # The move itself is durable only when the folder is; not every system lets a folder be opened.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"it has the key {twice[:60]!r} twice")
    return found


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
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise self.refused(path, "is not a file")
            if most is not None and found.st_size > most:
                raise self.refused(path, f"has {found.st_size} bytes, and a {self.name} at most {most}")
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
        found = parse_json(content)
    except InputError as error:
        raise form.refused(path, f"is no {form.name}: {error}") from error
    if not isinstance(found, dict):
        raise form.refused(path, f"is no {form.name}: it holds a {type(found).__name__}, not an object")
    values = {name: value for name, value in found.items() if name not in _OWN_KEYS}
    kind, version = found.get("format"), found.get("schema")
    if "digest" in found or kind is not None:
        sealed = _sealed({name: value for name, value in found.items() if name != "digest"})
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
