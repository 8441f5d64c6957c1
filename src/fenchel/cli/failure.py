"""Every failure of a command as one line on standard error and an exit code."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fenchel.arguments import reason_of
from fenchel.errors import FenchelError, OutputError
from fenchel.io.runs import RunObserver

if TYPE_CHECKING:
    from fenchel.io.runs import RunKind

_UNEXPECTED = 1
_INTERRUPTED = 130
_LONGEST = 1000
_WITHOUT_MEMORY = re.compile("out of memory|can't allocate memory")


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The user stopped a command.

    Args:
        message: What was written.
        unfinished: Whether there is a run to go on with.
    """

    def __init__(self, message: str, *, unfinished: bool = False) -> None:
        super().__init__(message)
        self.unfinished = unfinished

    def with_command(self, arguments: Sequence[str]) -> Interrupted:
        """The same, with the command that goes on with the run.

        Args:
            arguments: Those of the command that was stopped.
        """
        if not self.unfinished:
            return self
        if os.environ.get("WORLD_SIZE", "1") != "1":
            return Interrupted(f"{self}. Go on with the same torchrun command and --resume")
        given = [one for one in arguments if one not in ("--overwrite", "--resume")]
        return Interrupted(f"{self}. Go on with: {shlex.join(['fenchel', *given, '--resume'])}")


def exit_code_of(command: Callable[[], int]) -> int:
    """Runs a command, and turns whatever it raises into a line for a person.

    With ``FENCHEL_TRACEBACK=1`` in the environment the traceback comes before the line.

    Args:
        command: Returns an exit code.

    Returns:
        Its exit code, or that of what it raised.
    """
    before = warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        return command()
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("FENCHEL_TRACEBACK", "") not in ("", "0"):
            traceback.print_exc()
        code, message = _code_and_words(error)
        say(message)
        return code
    finally:
        warnings.showwarning = before


def _code_and_words(error: BaseException) -> tuple[int, str]:
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return _INTERRUPTED, str(error) or "interrupted"
    if isinstance(error, FenchelError):
        return error.exit_code, f"error: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return OutputError.exit_code, f"error: {error.filename}: {reason_of(error)}."
    without_memory = isinstance(error, RuntimeError) and _WITHOUT_MEMORY.search(str(error))
    if isinstance(error, MemoryError) or without_memory:
        return _UNEXPECTED, (
            f"error: out of memory ({error}). Lower --batch-size or --max-length and start again; an audit or a swap "
            "goes on where it was with --resume."
        )
    return _UNEXPECTED, (
        f"error: unexpected {type(error).__name__}: {error}. This is a fault in fenchel: please report it, "
        "with what FENCHEL_TRACEBACK=1 shows."
    )


def say(message: str) -> None:
    """Writes a message to standard error: one line, cut off where it is more than anybody reads."""
    text = " ".join(message.split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    print(f"fenchel: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _show_warning(message: Warning | str, *_: Any) -> None:
    say(f"warning: {message}")


@contextlib.contextmanager
def interruptible(observer: RunObserver[Any], kind: RunKind, folder: Path) -> Iterator[RunObserver[Any]]:
    """Within it, Ctrl-C ends the run, and says what was saved and how to go on.

    An exception that a signal raises while a destructor or a callback of the garbage collector runs is printed and
    forgotten. The observer therefore raises it once more at the next batch.

    Args:
        observer: Whom the run tells how it goes.
        kind: What is run.
        folder: Where it is saved.

    Yields:
        The observer to give to the run.

    Raises:
        Interrupted: When the user has stopped the run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield observer
        return
    observed = _InterruptingObserver(observer)
    before = signal.signal(signal.SIGINT, observed.ask)
    try:
        yield observed
    except KeyboardInterrupt:
        raise _interrupted(kind, folder) from None
    finally:
        signal.signal(signal.SIGINT, before)


class _InterruptingObserver:
    """Tells another, and raises again what was asked for.

    Args:
        observer: The other.
    """

    def __init__(self, observer: RunObserver[Any]) -> None:
        self._observer, self._interrupted = observer, False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal."""
        self._interrupted = True
        raise KeyboardInterrupt

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """See ``RunObserver``."""
        self._observer.started(manifest)

    def advanced(self, progress: Any, /) -> None:
        """See ``RunObserver``; what was counted will be saved."""
        self._observer.advanced(progress)
        if self._interrupted:
            raise KeyboardInterrupt

    def finished(self) -> None:
        """See ``RunObserver``."""
        self._observer.finished()


def _interrupted(kind: RunKind, folder: Path) -> Interrupted:
    """What an interrupted run has left behind."""
    try:
        saved = kind.saved(folder)
    except FenchelError:
        saved = None
    if saved is None:
        return Interrupted("interrupted before anything was saved")
    if saved.finished:
        return Interrupted(f"interrupted; the finished {kind.name} in {folder} is intact")
    return Interrupted(f"interrupted; {saved.done} are saved in {folder}", unfinished=True)
