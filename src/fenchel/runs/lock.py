"""Locks between processes that share a folder; the system lets go of one when its process ends, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fenchel.errors import InputError
from fenchel.runs.extras import require_packages
from fenchel.storage import guarded_writing

__all__ = ["LOCK_FILE", "claimed", "tried"]

LOCK_FILE = "fenchel.lock"
"""In a folder that a run is writing to."""


@contextlib.contextmanager
def claimed(folder: Path | None, *, extra: str) -> Iterator[None]:
    """Have the folder of a run for this process alone, from before its first look into it.

    Args:
        folder: The folder, made if needed; None for nowhere.
        extra: The extra of ``fenchel`` that brings filelock for this command.

    Raises:
        InputError: If another process has it.
        OutputError: If it cannot be made or written to.
        MissingExtraError: If filelock is not installed.
    """
    if folder is None:
        yield
        return
    with guarded_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with tried(path, extra=extra) as free:
        if not free:
            raise InputError(
                f"{folder} is in use: another process is writing its results there. Wait until it has ended, or choose "
                "another folder."
            )
        try:
            yield
        finally:
            # While it is ours: who opened it before then sees that it has no name any more, and tries again.
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def tried(path: Path, *, extra: str) -> Iterator[bool]:
    """Take a lock if it is free, and give it back at the end.

    Args:
        path: The lock's file, made if needed and left behind empty; its folder must exist.
        extra: The extra of ``fenchel`` that brings filelock for this command.

    Yields:
        Whether the lock was free and is now ours.

    Raises:
        OutputError: If the file cannot be made.
        MissingExtraError: If filelock is not installed.
    """
    require_packages(extra, "filelock")
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    with contextlib.ExitStack() as stack:
        with guarded_writing(path):
            try:
                stack.enter_context(lock.acquire(blocking=False))
                free = True
            except Timeout:
                free = False
        yield free
