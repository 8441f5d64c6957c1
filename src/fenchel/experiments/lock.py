"""Locks between processes that share a folder; the system lets go of one when its process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

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
    """
    with _opened(path) as descriptor:
        yield _take(descriptor, wait=False)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for a lock, and give it back at the end.

    Args:
        path: As in ``tried``.

    Raises:
        OutputError: If the file cannot be made.
    """
    with _opened(path) as descriptor:
        _take(descriptor, wait=True)
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    with guarded_writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _take(descriptor: int, *, wait: bool) -> bool:
        import msvcrt
        import time

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:  # noqa: PERF203 - waiting is what the loop is for
                if not wait:
                    return False
                time.sleep(0.1)
            else:
                return True

else:

    def _take(descriptor: int, *, wait: bool) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
