"""Runs: shards, observers and progress; folders that one process writes to, and files that are replaced as a whole.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fenchel.arguments import number_of, reason_of, shown, whole
from fenchel.errors import InputError, OutputError, require_packages

_NUMBER = whole(0, 10**9, "4")


@dataclass(frozen=True)
class Shard:
    """Every ``count``-th document of a corpus, starting with document ``index`` (from 0).

    Raises:
        InputError: If ``index`` is not from 0 to ``count`` - 1.

    Example:
        >>> shard = Shard.of("1/4")
        >>> [document for document in range(10) if shard.takes(document)]
        [1, 5, 9]
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InputError(
                f"shard {self} does not exist; expected i/n with i from 0 to n - 1, such as 0/4."
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def of(cls, shard: Shard | str | Sequence[int]) -> Shard:
        """The shard that is given as a ``Shard``, as ``"i/n"`` or as ``(i, n)``.

        Raises:
            InputError: If it is none of these, or there is no such shard.

        Example:
            >>> Shard.of((1, 4)) == Shard.of("1/4") == Shard(1, 4)
            True
        """
        if isinstance(shard, Shard):
            return shard
        try:
            given = [int(part) for part in shard.split("/")] if isinstance(shard, str) else shard
            index, count = map(_NUMBER.fit, given if isinstance(given, Sequence) else ())
        except ValueError:
            raise InputError(
                f"shard is {shown(shard)}; expected i/n or (i, n), such as 0/4 for the first of four."
            ) from None
        return cls(index, count)

    @classmethod
    def from_environment(cls) -> Shard:
        """The shard RANK/WORLD_SIZE, as ``torchrun`` sets them; the whole corpus where WORLD_SIZE is not set.

        Raises:
            InputError: If RANK is not set, or the variables are not a shard.
        """
        count, index = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK")
        if count == "1":
            return cls()
        if index is None:
            raise InputError(
                f"WORLD_SIZE is {count} but RANK is not set. Set both, or neither, or give the shard."
            )
        return cls.of(f"{index}/{count}")

    def takes(self, document: int) -> bool:
        """Whether the document with this index (from 0) is in this shard."""
        return document % self.count == self.index

    def share(self, total: int | None) -> float:
        """This shard's part of a limit that all shards share; infinite for None."""
        if total is None:
            return math.inf
        return total // self.count + (self.index < total % self.count)


# The shard of a whole corpus.
WHOLE = Shard()


class RunObserver(Protocol):
    """Receives the progress of a run."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """Called before the first batch or step, with the manifest of the run."""

    def advanced(self, progress: Progress, /) -> None:
        """Called after each batch or step."""

    def finished(self) -> None:
        """Called when the run has ended or was interrupted."""


class SilentObserver(RunObserver):
    """Ignores the progress of a run."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        documents: Number of documents begun, including earlier sessions.
        tokens: Number of tokens counted, including earlier sessions.
        tokens_per_second: Speed in this session.
        fraction: Share of the source that has been read, from 0 to 1; None if its length is unknown.
        seconds: Time since this session began.
        seconds_left: Estimated time to the end at this session's speed; None if unknown.
    """

    documents: int
    tokens: int
    tokens_per_second: float
    fraction: float | None
    seconds: float
    seconds_left: float | None


class ProgressClock:
    """Measures the speed of a session and estimates the time left.

    Args:
        tokens: Number of tokens counted before this session.
        now: Returns the time in seconds.
        skip_first: Estimate the time left without the time of the first progress, as in a resumed session.
    """

    def __init__(
        self, tokens: int = 0, now: Callable[[], float] = time.monotonic, skip_first: bool = False
    ) -> None:
        self._now, self._begin, self._tokens_before = now, now(), tokens
        self._first: tuple[float, float] | None = None if tokens or skip_first else (0.0, 0.0)

    def progress(self, documents: int, tokens: int, fraction: float | None) -> Progress:
        """The progress at this moment."""
        seconds, left = self._now() - self._begin, None
        if fraction is not None:
            # A resumed session begins inside the source, at the fraction of its first batch.
            self._first = first_seconds, first_fraction = self._first or (seconds, fraction)
            read = fraction - first_fraction
            left = (seconds - first_seconds) * (1.0 - fraction) / read if read > 0 else None
        speed = (tokens - self._tokens_before) / seconds if seconds > 0 else 0.0
        return Progress(documents, tokens, speed, fraction, seconds, left)


# Names of values that a manifest has as None, or not at all, where an option was not given.
ABSENT = {
    "queries": "all",
    "layers": "all",
    "heads": "all",
    "max_tokens": "no limit",
    "reads": "text",
    "estimator": "first order",
    "revision": "not given",
    "text_sha256": "not known",
}


def differences(
    saved: Mapping[str, Any],
    requested: Mapping[str, Any],
    *,
    ignored: Collection[str] = (),
    labels: tuple[str, str] = ("there", "asked for"),
) -> list[str]:
    """The differences between two manifests.

    Args:
        saved: A manifest, such as that of the run in a folder.
        requested: Another, such as that of the requested run.
        ignored: Keys to ignore.
        labels: Words after a value of the first manifest and of the second.

    Returns:
        A phrase for each key that differs, in the order of the manifests; keys with spaces for underscores. The
        convention is left out where the space or the closeness differs, from which it follows.

    Example:
        >>> differences({"batch_size": 8, "tokens": 5}, {"batch_size": 4, "tokens": 6}, ignored={"tokens"})
        ['batch size: 8 there, 4 asked for']
        >>> differences({"queries": 16, "max_tokens": None}, {"max_tokens": 900})
        ['queries: 16 there, all asked for', 'max tokens: no limit there, 900 asked for']
    """

    def written(value: Any, key: str) -> str:
        return ABSENT.get(key, "the default") if value is None else repr(value)

    keys = [
        key for key in {**saved, **requested} if key not in ignored and saved.get(key) != requested.get(key)
    ]
    follows = {"convention"} if {"space", "closeness"} & {*keys} else set[str]()
    first, second = labels
    return [
        f"{key.replace('_', ' ')}: {written(saved.get(key), key)} {first}, {written(requested.get(key), key)} {second}"
        for key in keys
        if key not in follows
    ]


_TEMPORARY_PREFIX = ".fenchel-"
_ELSEWHERE = "Choose a folder that you may write to"
_AGAIN = "Free some space, then run the command again, with --resume where it has that"

# Reasons, where that of the system is not clear, and remedies, by the number of an error.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ("the disk is full", _AGAIN)),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), ("", _ELSEWHERE)),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), ("there is a file where a folder is expected", "")),
}


@contextlib.contextmanager
def guarded_writing(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into one line: the path, the reason, and the remedy.

    Args:
        path: The file or folder that is written.

    Raises:
        OutputError: In place of any other ``OSError``.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason, advice = _REMEDIES.get(error.errno or 0, ("", ""))
        reason, advice = reason or reason_of(error), advice or "Choose another folder"
        raise OutputError(f"cannot write {path}: {reason}. {advice}; earlier results are intact.") from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path whose file replaces ``path`` in one step if the block succeeds.

    Args:
        path: The file to create or replace; its folder must exist.

    Yields:
        A path in the same folder. Its file must be written and closed within the block.

    Raises:
        OutputError: If the disk is full, the folder is read-only, or the file cannot be written for another
            reason; ``path`` is then unchanged.
    """
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{path.name}-{secrets.token_hex(4)}")
    try:
        with guarded_writing(path):
            yield temporary
            with temporary.open("r+b") as written:  # Windows syncs only what is open for writing
                os.fsync(written.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    # The rename is durable only once the folder is; some systems do not let a folder be opened.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, without changing line ends."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def check_writable(folder: Path, needed_bytes: int = 1 << 20) -> None:
    """Create a folder and check that files can be written to it, before an expensive computation.

    Temporary files that an interrupted run left there are removed.

    Args:
        folder: The folder for the results.
        needed_bytes: Required free space.

    Raises:
        OutputError: If the folder cannot be created or written to, or has too little free space.
    """
    with guarded_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{_TEMPORARY_PREFIX}*"):
            if left_over.is_file():
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


# Name of the lock file in the folder of a run.
LOCK_FILE = "fenchel.lock"


@contextlib.contextmanager
def claimed(folder: Path | None) -> Iterator[None]:
    """Lock the folder of a run for this process.

    The folder is created if needed. If the block fails, the folders that were created are removed again unless they
    hold files.

    Args:
        folder: The folder; None for a run without one.

    Raises:
        InputError: If another process has locked it.
        OutputError: If it cannot be created or written to.
        MissingExtraError: If filelock is not installed.
    """
    if folder is None:
        yield
        return
    require_packages("report", "filelock")
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    lock = FileLock(path)
    created = [parent for parent in (folder, *folder.parents) if not os.path.lexists(parent)]
    try:
        with guarded_writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise InputError(
                    f"{folder} is in use: another process is writing its results there. Wait until it has ended, or "
                    "choose another folder."
                ) from None
        try:
            yield
        finally:
            # Before the release: a process that has opened the file then sees that it is gone, and tries again.
            with contextlib.suppress(OSError):
                path.unlink()
            lock.release()
    except BaseException:
        for parent in created:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def counts_of(state: Any) -> str:
    """The documents and tokens, or images, that a state has counted, in words.

    Args:
        state: With a ``manifest`` and a ``cursor``.

    Example:
        >>> from types import SimpleNamespace
        >>> counts_of(SimpleNamespace(manifest={}, cursor=SimpleNamespace(documents=1, tokens=5120)))
        '1 document and 5,120 tokens'
    """
    cursor, images = state.cursor, state.manifest.get("reads") == "images"
    counts = {"image": cursor.documents} if images else {"document": cursor.documents, "token": cursor.tokens}
    return " and ".join(number_of(count, what) for what, count in counts.items())


@dataclass(frozen=True)
class RunKind:
    """A kind of run and the files in its folder.

    Attributes:
        name: Such as "audit".
        state: Name of the state file, from which a run is resumed.
        results: Names of files that are made from the state.
        read: Reads the state from a folder, which has a ``manifest``, a ``cursor`` and is ``finished`` or not; raises
            ``InputError`` if it is damaged. With ``parts=False`` it does not check the parts of tables.
        free: Entries of the manifest that a resumed run may change.
    """

    name: str
    state: str
    results: tuple[str, ...]
    read: Callable[..., Any]
    free: Collection[str] = ()

    def saved(self, folder: Path, *, parts: bool = False) -> Any:
        """The state of the run in a folder, whose tables are checked with ``parts``; None if there is none.

        Raises:
            InputError: If its state is damaged.
        """
        return self.read(folder, parts=parts) if (folder / self.state).exists() else None

    def resumed(self, folder: Path | None, requested: Mapping[str, Any], *, overwrite: bool) -> Any:
        """The state of an interrupted or finished run in a folder, to continue it; None where there is none.

        Args:
            folder: The folder, checked by :meth:`claimed`; None for a run without one.
            requested: Manifest of the requested run.
            overwrite: Replace the run in the folder.

        Raises:
            InputError: If the folder holds another run of this kind, or a damaged one.
        """
        state = None if folder is None or overwrite else self.saved(folder, parts=True)
        if folder is not None and state is not None:
            self.refuse_other(folder, state.manifest, requested, ignored=self.free)
        return state

    @contextlib.contextmanager
    def claimed(self, folder: Path | None, *, resume: bool, overwrite: bool) -> Iterator[None]:
        """Lock a folder as :func:`claimed` does, after checking that a run may write its results there.

        Args:
            folder: The folder; None for a run without one.
            resume: Continue the run in the folder, or start one; keep a finished one.
            overwrite: Replace the run in the folder.

        Raises:
            InputError: If the folder is locked; if it holds such a run and neither was asked for, or both were; if it
                holds results without their state and ``overwrite`` was not asked for.
            OutputError: If it cannot be written to.
            MissingExtraError: If a package that results in a folder need is not installed.
        """
        with claimed(folder):
            if folder is not None:
                require_packages("report", "jinja2")
                check_writable(folder)
                self._refuse_occupied(folder, resume=resume, overwrite=overwrite)
            yield

    def _refuse_occupied(self, folder: Path, *, resume: bool, overwrite: bool) -> None:
        if resume and overwrite:
            raise InputError(
                "--resume and --overwrite contradict each other: the first keeps what the second discards."
            )
        if overwrite:
            return
        if (folder / self.state).exists():
            if resume:
                return
            saved = self.saved(folder)
            model, end = saved.manifest.get("model"), "finished" if saved.finished else "interrupted"
            article = "an" if self.name[0] in "aeiou" else "a"
            raise InputError(
                f"{folder} holds {article} {self.name} of {model}, {end} after {counts_of(saved)}. Continue it with "
                "--resume, replace it with --overwrite, or choose another folder."
            )
        if any((folder / name).exists() for name in self.results):
            raise InputError(
                f"{folder} holds results without their state file ({self.state}). Replace them with "
                "--overwrite, or choose another folder."
            )

    def refuse_other(
        self,
        folder: Path,
        saved: Mapping[str, Any],
        requested: Mapping[str, Any],
        *,
        ignored: Collection[str] = (),
    ) -> None:
        """Raise if the run in the folder differs from the requested one.

        Args:
            folder: The folder.
            saved: Manifest of the run in the folder.
            requested: Manifest of the requested run.
            ignored: Entries that may differ.

        Raises:
            InputError: If there is a difference.
        """
        if differing := differences(saved, requested, ignored=ignored):
            raise InputError(
                f"{folder} holds another {self.name} than the one asked for; they differ in {'; '.join(differing)}. "
                "Give the same options, start anew with --overwrite, or choose another folder."
            )
