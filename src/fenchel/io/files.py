"""Files that are whole or not there, and what the system says of those that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from fenchel.arguments import reason_of
from fenchel.errors import OutputError

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
