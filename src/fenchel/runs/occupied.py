"""The folder of a run: whether one is there, how far it is, and whether another may be started in its place.

What every command does: where nothing was begun, a run begins, with ``resume`` or without; one that was interrupted is
gone on with and one that has finished is kept if ``resume`` is given, and both are refused without it; another run than
the one asked for, and results without the state that they came from, are never replaced unless ``overwrite`` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fenchel.errors import InputError

__all__ = ["RunKind", "Saved", "refuse_without_folder"]


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


def refuse_without_folder(folder: Path | None, **given: bool) -> None:
    """Refuse options that are about files where nothing is written.

    Args:
        folder: Where results go, None for nowhere.
        given: The options by name.

    Raises:
        InputError: If one is given and there is no folder.

    Example:
        >>> refuse_without_folder(None, resume=True, overwrite=False)
        Traceback (most recent call last):
        fenchel.errors.InputError: resume and overwrite are about files, but no directory was given for any.
    """
    if folder is None and any(given.values()):
        *first, last = given
        raise InputError(
            f"{', '.join(first)} and {last} are about files, but no directory was given for any."
        )
