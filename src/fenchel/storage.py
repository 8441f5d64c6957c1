"""Files that are whole or not there: written beside their place, flushed to the disk, moved in one step."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fenchel.errors import InputError, MissingExtraError, OutputError

__all__ = [
    "atomic_path",
    "check_writable",
    "guarded_writing",
    "json_text",
    "read_tensors",
    "write_json",
    "write_tensors",
    "write_text",
]

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


def json_text(value: Any) -> str:
    """JSON that is the same bytes for the same content: sorted keys, neither NaN nor infinity."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write JSON, atomically."""
    write_text(path, json_text(value))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Any) -> None:
    """Write tensors and what describes them into one safetensors file, so that they cannot disagree.

    Args:
        path: The file.
        tensors: Contiguous tensors by name.
        description: Anything that is JSON; kept in the file's metadata.
    """
    save = _safetensors().save
    content = save(dict(tensors), metadata={"fenchel": json_text(description)})
    with atomic_path(path) as temporary, guarded_writing(path):
        temporary.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what ``write_tensors`` wrote.

    Returns:
        The tensors by name and the description.

    Raises:
        InputError: If the file is not there, is damaged or was not written by ``write_tensors``.
    """
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            description = json.loads((file.metadata() or {})["fenchel"])
            return {name: file.get_tensor(name) for name in file.keys()}, description  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read back: {_reason(error)}.") from error


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
            reason, advice = "the disk is full", "Free some space, then go on with --resume"
        elif number in _FORBIDDEN:
            reason, advice = _reason(error), "Choose a folder that you may write to"
        elif number in _NOT_A_FOLDER:
            reason, advice = "there is a file where a folder is expected", "Choose another folder"
        else:
            reason, advice = _reason(error), "Choose another folder, or go on with --resume"
        raise OutputError(
            f"cannot write {path}: {reason}. {advice}; what was written before is intact."
        ) from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _flush_folder(folder: Path) -> None:
    # The move itself is durable only when the folder is; not every system lets a folder be opened.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "hf") from error
    return safetensors.torch
