"""Locks between processes that share a folder; the system lets go of one when its process ends, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fenchel.runs.extras import require_packages
from fenchel.storage import guarded_writing

__all__ = ["held", "tried"]


@contextlib.contextmanager
def tried(path: Path) -> Iterator[bool]:
    """Take a lock if it is free, and give it back at the end.

    Args:
        path: The lock's file, made if needed and left behind empty; its folder must exist.

    Yields:
        Whether the lock was free and is now ours.

    Raises:
        OutputError: If the file cannot be made.
        MissingExtraError: If filelock is not installed.
    """
    with _taken(path, wait=False) as free:
        yield free


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for a lock, and give it back at the end.

    Args:
        path: As in ``tried``.

    Raises:
        OutputError: If the file cannot be made.
        MissingExtraError: If filelock is not installed.
    """
    with _taken(path, wait=True):
        yield


@contextlib.contextmanager
def _taken(path: Path, *, wait: bool) -> Iterator[bool]:
    require_packages("train", "filelock")
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    with contextlib.ExitStack() as stack:
        with guarded_writing(path):
            try:
                stack.enter_context(lock.acquire(blocking=wait))
                free = True
            except Timeout:
                free = False
        yield free
