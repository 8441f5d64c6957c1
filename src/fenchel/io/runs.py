"""A run: its share of a corpus, who is told how far it is, its folder, and that one process writes to that.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fenchel.arguments import shown
from fenchel.errors import InputError, require_packages
from fenchel.io.files import guarded_writing
from fenchel.version import __version__


@dataclass(frozen=True)
class Shard:
    """Share ``index`` (from 0) of a corpus in ``count`` parts, dealt out document by document.

    Raises:
        InputError: If there is no such share.

    Example:
        >>> shard = Shard.parse("1/4")
        >>> [document for document in range(10) if shard.takes(document)]
        [1, 5, 9]
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"shard {self} asks for {self.count} shards; there must be at least 1.")
        if not 0 <= self.index < self.count:
            raise InputError(
                f"shard {self} does not exist: shards go from 0/{self.count} to "
                f"{self.count - 1}/{self.count}."
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Reads ``i/n``.

        Args:
            text: Two whole numbers with a slash between them.

        Returns:
            The shard.

        Raises:
            InputError: If the text is anything else, or there is no such shard.
        """
        index, _, count = text.partition("/")
        try:
            return cls(int(index), int(count))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"shard {text!r} is not of the form i/n, such as 0/4 for the first of four."
            ) from None

    @classmethod
    def of(cls, shard: Shard | str | Sequence[int]) -> Shard:
        """A shard from itself, from ``"i/n"`` or from ``(i, n)``.

        Raises:
            InputError: If it is none of these, or there is no such shard.

        Example:
            >>> Shard.of((1, 4)) == Shard.of("1/4") == Shard(1, 4)
            True
        """
        if isinstance(shard, Shard):
            return shard
        if isinstance(shard, str):
            return cls.parse(shard)
        if isinstance(shard, Sequence) and len(shard) == 2:
            numbers = [n for n in shard if isinstance(n, Integral) and not isinstance(n, bool)]
            if len(numbers) == 2:
                return cls(*map(int, numbers))
        raise InputError(
            f"shard is {shown(shard)}; expected two whole numbers (i, n), such as (0, 4) for the first of four."
        )

    @classmethod
    def from_environment(cls) -> Shard:
        """The shard that ``torchrun`` and its like give to this process in RANK and WORLD_SIZE.

        Returns:
            The shard, or the only one where WORLD_SIZE is not set.

        Raises:
            InputError: If the variables do not hold a shard.
        """
        count, index = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK")
        if count == "1":
            return cls()
        if index is None:
            raise InputError(
                f"WORLD_SIZE is {count} but RANK is not set. Set both, or neither, or give the shard."
            )
        return cls.parse(f"{index}/{count}")

    def takes(self, document: int) -> bool:
        """Whether the document with this index (from 0) is in this shard."""
        return document % self.count == self.index

    def share(self, total: int | None) -> float:
        """This shard's part of a total that all shards reach together; infinite where there is none."""
        if total is None:
            return math.inf
        return total // self.count + (self.index < total % self.count)


P = TypeVar("P", contravariant=True)


class RunObserver(Protocol[P]):
    """Shows how far a run is, in the progress that its kind of run counts."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """The first batch or step is about to be taken; ``manifest`` says of what run."""

    def advanced(self, progress: P, /) -> None:
        """A batch or step has been counted."""

    def finished(self) -> None:
        """The run has ended or was interrupted: nothing more will be told."""


class SilentObserver:
    """Shows nothing."""

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """See ``RunObserver``."""

    def advanced(self, progress: Any, /) -> None:
        """See ``RunObserver``."""

    def finished(self) -> None:
        """See ``RunObserver``."""


class SavingPace:
    """Says when it is time to save.

    Args:
        seconds: Least time between two savings.
        now: Gives the time in seconds.

    Example:
        >>> times = iter([0.0, 5.0, 10.0, 10.0, 19.0])
        >>> pace = SavingPace(10.0, lambda: next(times))
        >>> pace.due, pace.due
        (False, True)
        >>> pace.saved()
        >>> pace.due
        False
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._last = now()

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the run began or was last saved."""
        return self._now() - self._last >= self._seconds

    def saved(self) -> None:
        """The run was saved just now."""
        self._last = self._now()


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        documents: Documents begun, those of earlier sessions included.
        tokens: Tokens counted, those of earlier sessions included.
        tokens_per_second: Speed in this session.
        fraction: Share of the source that has been read, from 0 to 1, or None where its length is not known.
        seconds: Time since this session began.
        seconds_left: Time to the end at this session's speed, or None where it cannot be told.
    """

    documents: int
    tokens: int
    tokens_per_second: float
    fraction: float | None
    seconds: float
    seconds_left: float | None


ReadingObserver = RunObserver[Progress]
"""Whoever shows how far a run through texts is."""


class ProgressClock:
    """Turns counts into speeds.

    Args:
        tokens: Tokens counted before this session.
        now: Gives the time in seconds.
    """

    def __init__(self, tokens: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begin = now()
        self._tokens_before = tokens
        self._first: tuple[float, float] | None = None if tokens else (0.0, 0.0)

    def progress(self, documents: int, tokens: int, fraction: float | None) -> Progress:
        """How far the run is now."""
        seconds = self._now() - self._begin
        return Progress(
            documents=documents,
            tokens=tokens,
            tokens_per_second=(tokens - self._tokens_before) / seconds if seconds > 0 else 0.0,
            fraction=fraction,
            seconds=seconds,
            seconds_left=self._seconds_left(seconds, fraction),
        )

    def _seconds_left(self, seconds: float, fraction: float | None) -> float | None:
        if fraction is None:
            return None
        # A resumed session begins somewhere inside the source: its first batch says where.
        if self._first is None:
            self._first = (seconds, fraction)
        first_seconds, first_fraction = self._first
        read = fraction - first_fraction
        return (seconds - first_seconds) * (1.0 - fraction) / read if read > 0 else None


def versions(schema: int) -> dict[str, Any]:
    """What a manifest of a run on a text model begins with.

    Args:
        schema: Version of the files that the run writes.

    Returns:
        Versions of the files, of this package and of what it computes with; None for what is not installed.
    """
    return {
        "schema": schema,
        "fenchel": __version__,
        "torch": _installed("torch"),
        "transformers": _installed("transformers"),
        "python": platform.python_version(),
    }


def differences(
    there: Mapping[str, Any],
    asked: Mapping[str, Any],
    *,
    but: Collection[str] = (),
    said: tuple[str, str] = ("there", "asked for"),
) -> list[str]:
    """How two manifests differ, one phrase a field.

    Args:
        there: A manifest, such as that of the run in a folder.
        asked: Another, such as that of the run that is asked for.
        but: Keys that may differ.
        said: What to say of a value of the one and of the other.

    Returns:
        A phrase for every other key that differs, in the order of the manifests; spaces for underscores, as options are
        named wherever this package speaks of them.

    Example:
        >>> differences({"batch_size": 8, "tokens": 5}, {"batch_size": 4, "tokens": 6}, but={"tokens"})
        ['batch size: 8 there, 4 asked for']
    """
    return [
        f"{key.replace('_', ' ')}: {there.get(key)!r} {said[0]}, {asked.get(key)!r} {said[1]}"
        for key in {**there, **asked}
        if key not in but and there.get(key) != asked.get(key)
    ]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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
    require_packages(extra, "filelock")
    from filelock import FileLock, Timeout

    path = folder / LOCK_FILE
    lock = FileLock(path)
    with guarded_writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise InputError(
                f"{folder} is in use: another process is writing its results there. Wait until it has ended, or choose "
                "another folder."
            ) from None
    try:
        yield
    finally:
        # While it is ours: who opened it before then sees that it has no name any more, and tries again.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


@dataclass(frozen=True)
class Saved:
    """How far the run in a folder has come.

    Attributes:
        of: What it is a run of, such as the model's name.
        counts: How many of what are saved, such as {"document": 3, "token": 512}.
        finished: Whether nothing is left to do.
    """

    of: str
    counts: Mapping[str, int]
    finished: bool

    @property
    def done(self) -> str:
        """What is saved, in words.

        Example:
            >>> Saved("bert", {"document": 1, "token": 512}, finished=False).done
            '1 document and 512 tokens'
        """
        return " and ".join(
            f"{count} {what}{'' if count == 1 else 's'}" for what, count in self.counts.items()
        )


@dataclass(frozen=True)
class RunKind:
    """A kind of run: what it is called and what it leaves in its folder.

    Attributes:
        name: Such as "audit".
        state: Name of the file that it goes on from.
        results: Names of files that are made from the state.
        read: The state in a folder; raises ``InputError`` where it is damaged.
    """

    name: str
    state: str
    results: tuple[str, ...]
    read: Callable[[Path], Saved]

    def saved(self, folder: Path) -> Saved | None:
        """How far the run in a folder is; None where there is none.

        Raises:
            InputError: If its state is damaged.
        """
        return self.read(folder) if (folder / self.state).exists() else None

    def refuse_occupied(self, folder: Path, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that holds a run of this kind, unless it is said what to do with that.

        Args:
            folder: The folder, whether or not it is there.
            resume: Go on with what is there, if anything; keep what has finished.
            overwrite: Start anew whatever is there.

        Raises:
            InputError: If the folder holds such a run and neither is wanted, or both are; if it holds results without
                their state and ``overwrite`` is not wanted.
        """
        if resume and overwrite:
            raise InputError(
                "--resume and --overwrite contradict each other: the first keeps what the second discards."
            )
        if overwrite:
            return
        if (folder / self.state).exists():
            if resume:
                return
            saved = self.read(folder)
            end = "finished" if saved.finished else "interrupted"
            article = "an" if self.name[0] in "aeiou" else "a"
            raise InputError(
                f"{folder} holds {article} {self.name} of {saved.of}, {end} after {saved.done}. Continue it with "
                "--resume, replace it with --overwrite, or choose another folder."
            )
        if any((folder / name).exists() for name in self.results):
            raise InputError(
                f"{folder} holds results without their state file ({self.state}). Replace them with "
                "--overwrite, or choose another folder."
            )

    def refuse_other(self, folder: Path, differing: Sequence[str]) -> None:
        """Refuse to go on with another run than the one asked for.

        Args:
            folder: The folder.
            differing: In what they differ, as ``differences`` says it.

        Raises:
            InputError: If they differ in anything.
        """
        if differing:
            raise InputError(
                f"{folder} holds another {self.name} than the one asked for; they differ in {'; '.join(differing)}. "
                "Give the same options, start anew with --overwrite, or choose another folder."
            )
