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
from typing import Any, BinaryIO, NoReturn

from torch import Tensor

from fenchel.arguments import reason_of
from fenchel.errors import InputError, MissingExtraError, OutputError
from fenchel.io.schema import Mismatch, Record, check_json

__all__ = [
    "CHANGED",
    "HEX_DIGITS",
    "PREFIX",
    "Form",
    "atomic_path",
    "check_writable",
    "digest_of_bytes",
    "digest_of_file",
    "guarded_writing",
    "json_text",
    "parse_json",
    "read_document",
    "read_tensors",
    "reason_of",
    "refused",
    "removed_if_empty",
    "sealed_text",
    "size_of_file",
    "write_document",
    "write_json",
    "write_tensors",
    "write_text",
]

PREFIX = "sha256:"
HEX_DIGITS = 64

_CHUNK = 1 << 20


def digest_of_bytes(content: bytes) -> str:
    """``sha256:`` and the hexadecimal digits of the content's SHA-256."""
    return PREFIX + hashlib.sha256(content).hexdigest()


def digest_of_file(file: BinaryIO, blank: int) -> str:
    """The digest of a whole file with its own digest blanked, read piece by piece.

    Args:
        file: Opened for reading.
        blank: Where the hexadecimal digits stand that count as zeros.

    Returns:
        As ``digest_of_bytes``.
    """
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(blank))
    digest.update(b"0" * len(file.read(HEX_DIGITS)))
    while piece := file.read(_CHUNK):
        digest.update(piece)
    return PREFIX + digest.hexdigest()


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
    with atomic_path(path) as temporary, guarded_writing(path):
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
        if number in _FULL:
            reason, advice = (
                "the disk is full",
                "Free some space, then run the command again, with --resume where it has that",
            )
        elif number in _FORBIDDEN:
            reason, advice = reason_of(error), "Choose a folder that you may write to"
        elif number in _NOT_A_FOLDER:
            reason, advice = "there is a file where a folder is expected", "Choose another folder"
        else:
            reason, advice = reason_of(error), "Choose another folder"
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


_LONGEST_INTEGER = 300


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
            infinity, half of a surrogate pair, an integer of hundreds of digits, or nesting beyond measure. The message
            says what, without a file's name.

    Example:
        >>> parse_json(b'{"alpha": 1.5}')
        {'alpha': 1.5}
        >>> parse_json(b'{"alpha": 1, "alpha": 2}')
        Traceback (most recent call last):
        ...
        fenchel.errors.InputError: it has the key 'alpha' twice
    """
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_repetition,
            parse_constant=_refuse_constant,
            parse_int=_integer,
        )
        json_text(value).encode("utf-8")  # 1e999 is an infinity, and half of a surrogate pair is no character
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"it is no UTF-8 text (byte {error.start})") from error
    except UnicodeEncodeError as error:
        raise InputError("it holds half of a surrogate pair, which is no character") from error
    except json.JSONDecodeError as error:
        raise InputError(f"it is no JSON ({error})") from error
    except RecursionError as error:
        raise InputError("it is nested too deeply") from error
    except ValueError as error:
        raise InputError("it holds a number beyond float64") from error
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"it has the key {key[:60]!r} twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise InputError(f"it holds {name}, which is no JSON number")


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise InputError(f"it holds an integer of {len(digits)} digits")
    return int(digits)


CHANGED = "is damaged or was changed after it was written: its digest is not that of its content"
"""What is wrong with a file whose digest says otherwise than its content."""


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

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turns what a check or a parser says into one line that names the file.

        Args:
            path: What is being read.

        Raises:
            InputError: In place of any ``Mismatch``.
        """
        try:
            yield
        except Mismatch as error:
            raise refused(path, self, f"is not what fenchel writes: {error}") from error

    def check_kind(self, path: Path, name: Any, version: Any) -> None:
        """Refuses another kind of file, and another version of it.

        Raises:
            InputError: If either differs.
        """
        if name != self.name:
            raise refused(path, self, f"holds a {name}, not a {self.name}")
        if version != self.version:
            written = "an earlier" if isinstance(version, int) and version < self.version else "a later"
            raise refused(
                path,
                self,
                f"has schema {version!r} of a {self.name}, of {written} version of fenchel; this one reads schema "
                f"{self.version}",
            )


def size_of_file(path: Path, form: Form) -> int:
    """How many bytes a file has, before it is opened: what is no regular file could be read without end.

    Raises:
        InputError: If there is no such file, or it is something else.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise refused(path, form, f"cannot be read: {reason_of(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise refused(path, form, "is not a file")
    return found.st_size


def refused(path: Path, form: Form, reason: str) -> InputError:
    """The error of a file that cannot be used: its name, why, and what to do."""
    return InputError(f"{path} {reason}. {form.advice}")


def _without_digest(path: Path, form: Form, version: Any) -> InputError:
    return refused(
        path,
        form,
        f"has schema {version!r} and no digest, as an earlier version of fenchel wrote them; this one reads schema "
        f"{form.version}",
    )


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
        _check_document_seal(path, form, found, content)
        form.check_kind(path, found.get("format"), found.get("schema"))
    elif unsealed_version is None or found.get("schema") != unsealed_version:
        _refuse_unsealed_document(path, form, found)
    values = {name: value for name, value in found.items() if name not in _OWN_KEYS}
    with form.reading(path):
        check_json(form.schema, values)
    return values


def _check_document_seal(path: Path, form: Form, found: dict[str, Any], content: bytes) -> None:
    unsealed = {name: value for name, value in found.items() if name != "digest"}
    sealed = {**unsealed, "digest": digest_of_bytes(json_text(unsealed).encode("utf-8"))}
    # A copy whose line ends a version control system has rewritten throughout still says the same.
    if content.replace(b"\r\n", b"\n") != json_text(sealed).encode("utf-8"):
        raise refused(path, form, CHANGED)


def _refuse_unsealed_document(path: Path, form: Form, found: dict[str, Any]) -> None:
    version = found.get("schema")
    if isinstance(version, int) and not isinstance(version, bool) and 0 < version < form.version:
        raise _without_digest(path, form, version)
    raise refused(path, form, f"is no {form.name} that fenchel wrote: it has no digest")


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
        check_json(form.schema, found[2])
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
    raise _without_digest(path, form, earlier)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "hf") from error
    return safetensors.torch
