"""The folder of a run: what it holds, what was asked of it, and that one process writes to it."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fenchel.errors import InputError, require_packages
from fenchel.io.storage import guarded_writing
from fenchel.version import __version__

__all__ = [
    "LOCK_FILE",
    "RunKind",
    "Saved",
    "claimed",
    "differences",
    "versions",
]


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
        "torch": torch.__version__,
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
                f"{folder} holds {article} {self.name} of {saved.of}, {end} after {saved.done}. Keep it and do what is "
                "left with --resume, start anew with --overwrite, or choose another folder."
            )
        if any((folder / name).exists() for name in self.results):
            raise InputError(
                f"{folder} holds results without the state that they came from ({self.state}). Replace them with "
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
