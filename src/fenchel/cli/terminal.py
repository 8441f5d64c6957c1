"""Output of the commands in a terminal: errors, interruptions, progress, results and the catalogue.

A command that fails needs neither typer, rich nor torch to say why: they are imported where they are used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fenchel.arguments import checked, number_of, reason_of
from fenchel.drawing import duration, short, stacked, titled_table
from fenchel.errors import FenchelError, OutputError
from fenchel.io.runs import Progress, RunKind, RunObserver, SilentObserver, counts_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fenchel.auditing.audit_report import AuditReport
    from fenchel.catalogue import Entry
    from fenchel.swap.report import SwapReport

_UNEXPECTED = 1
_INTERRUPTED = 130
_MAX_LENGTH = 1000
_SECONDS_BETWEEN_LINES = 30.0
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_WITHOUT_MEMORY = re.compile("out of memory|can't allocate memory")


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The user interrupted a command.

    Args:
        message: States what was saved.
        unfinished: Whether there is a run to resume.
    """

    def __init__(self, message: str, *, unfinished: bool = False) -> None:
        super().__init__(message)
        self.unfinished = unfinished

    def with_command(self, arguments: Sequence[str]) -> Interrupted:
        """The same with the command that resumes the run, given the arguments of the interrupted one."""
        if not self.unfinished:
            return self
        if os.environ.get("WORLD_SIZE", "1") != "1":
            return Interrupted(f"{self}. Continue with the same torchrun command and --resume")
        kept = [argument for argument in arguments if argument not in ("--overwrite", "--resume")]
        return Interrupted(f"{self}. Continue with: {shlex.join(['fenchel', *kept, '--resume'])}")


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command and print whatever it raises as one line.

    With ``FENCHEL_TRACEBACK=1`` in the environment the traceback is printed first.

    Args:
        command: Returns an exit code.

    Returns:
        Its exit code, or that of the exception.
    """
    before = warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        # Imports may turn a KeyboardInterrupt into another error, or discard it.
        with _on_interrupt(_leave):
            return command()
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("FENCHEL_TRACEBACK", "") not in ("", "0"):
            traceback.print_exc()
        code, message = _code_and_message(error)
        say(message)
        _drop_unwritten_output()
        return code
    finally:
        warnings.showwarning = before


@contextlib.contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C within the block; other threads than the main one cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once."""
    say("interrupted")
    os._exit(_INTERRUPTED)


def _drop_unwritten_output() -> None:
    """Drop what cannot be written to standard output; Python would try again on exit and end with code 120."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _code_and_message(error: BaseException) -> tuple[int, str]:
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return _INTERRUPTED, str(error) or "interrupted"
    if isinstance(error, FenchelError):
        return error.exit_code, f"error: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return OutputError.exit_code, f"error: {error.filename}: {reason_of(error)}."
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        reason = reason_of(error)
        return OutputError.exit_code, f"error: the output cannot be written: {reason}. Write it elsewhere."
    without_memory = isinstance(error, RuntimeError) and _WITHOUT_MEMORY.search(str(error))
    if isinstance(error, MemoryError) or without_memory:
        return _UNEXPECTED, (
            f"error: out of memory ({error}). Lower --batch-size or --max-length and start again; an audit or a swap "
            "continues with --resume."
        )
    return _UNEXPECTED, (
        f"error: unexpected {type(error).__name__}: {error}. This is a bug in fenchel: please report it, with the "
        "output under FENCHEL_TRACEBACK=1."
    )


def say(message: str) -> None:
    """Print a message to standard error as one line of at most 1,000 characters."""
    text = " ".join(message.split())
    text = text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."
    print(f"fenchel: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _show_warning(message: Warning | str, *_: Any) -> None:
    say(f"warning: {message}")


@contextlib.contextmanager
def interruptible(observer: RunObserver, kind: RunKind, folder: Path) -> Iterator[RunObserver]:
    """Turn Ctrl-C within the block into an ``Interrupted`` that states what was saved and how to resume.

    Until the run has begun, Ctrl-C does what it did before the block. Python ignores an exception that a signal handler
    raises while a destructor or a callback of the garbage collector runs, and prints it. The observer therefore raises
    it again after the next batch.

    Args:
        observer: Receives the progress of the run.
        kind: The kind of run.
        folder: Where the run is saved.

    Yields:
        The observer to pass to the run.

    Raises:
        Interrupted: If the user has interrupted the run.
    """
    interrupting = _InterruptingObserver(observer, signal.getsignal(signal.SIGINT))
    hook = sys.unraisablehook
    sys.unraisablehook = lambda what: None if what.exc_type is KeyboardInterrupt else hook(what)
    try:
        with _on_interrupt(interrupting.interrupt):
            yield interrupting
        if not interrupting.begun and is_first_process():
            say(f"the {kind.name} in {folder} was already finished; nothing was measured again")
    except KeyboardInterrupt:
        raise _interrupted(kind, folder) from None
    finally:
        sys.unraisablehook = hook


class _InterruptingObserver(SilentObserver):
    """Forwards to another observer; raises an interrupt again after the next batch."""

    def __init__(self, observer: RunObserver, before: Any) -> None:
        self.begun, self.finished = False, observer.finished
        self._observer, self._before, self._interrupted = observer, before, False

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """See ``RunObserver``."""
        self.begun = True
        self._observer.started(manifest)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal."""
        self._interrupted = True
        if not self.begun and callable(self._before):
            self._before(number, frame)
        raise KeyboardInterrupt

    def advanced(self, progress: Progress, /) -> None:
        """See ``RunObserver``; the batch is counted and will be saved."""
        self._observer.advanced(progress)
        if self._interrupted:
            raise KeyboardInterrupt


def _interrupted(kind: RunKind, folder: Path) -> Interrupted:
    """The exception that states what an interrupted run has saved."""
    try:
        saved = kind.saved(folder)
    except FenchelError:
        saved = None
    if saved is None:
        return Interrupted("interrupted before anything was saved")
    if saved.finished:
        return Interrupted(f"interrupted; the finished {kind.name} in {folder} is intact")
    return Interrupted(f"interrupted; {counts_of(saved)} are saved in {folder}", unfinished=True)


# Headings of the list of entries, and what they are of.
_COLUMNS = {
    "name": "name",
    "mechanism": "title",
    "preference u": "preference",
    "evidence z": "evidence",
    "verdict": "verdict",
}
_LEFT_OUT_IF_NARROW = ("preference u", "evidence z")
_WIDE = 120  # columns
_UNLIMITED = 10_000  # columns
_CAPTION = (
    "Gap: upper bound on the objective minus its minimum; 0 is exact. The others: error as a fraction of the total "
    "weight, and of the output's norm."
)


def show(table: RenderableType, *sentences: str, last: str) -> None:
    """Print a table, then sentences without markup, and last a text whose lines are not broken."""
    console = _standard_output()
    console.print(table)
    for sentence in filter(None, sentences):
        console.print(sentence, markup=False, highlight=False)
    console.print(last, markup=False, highlight=False, soft_wrap=True)


def is_first_process() -> bool:
    """Whether this is the only process or that of rank 0, which alone shows progress and results."""
    return os.environ.get("RANK", "0") == "0"


def _standard_output() -> Console:
    """Standard output; in a file or a pipe a table is as wide as its cells, unless ``COLUMNS`` limits it."""
    from rich.console import Console

    console = Console()
    if not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console


def observer_of_standard_error(doing: str = "auditing") -> RunObserver:
    """An observer that shows progress on standard error: a bar in a terminal, lines in a file or a pipe.

    Of several processes only that of rank 0 shows it.

    Args:
        doing: The activity, printed before the model's name.
    """
    from rich.console import Console

    if not is_first_process():
        return SilentObserver()
    return TerminalObserver(Console(stderr=True), doing) if sys.stderr.isatty() else LineObserver(doing)


class LineObserver(SilentObserver):
    """Lines on standard error: the estimated total time once, then the progress at most every 30 seconds.

    Args:
        doing: The activity, printed before the model's name.
    """

    def __init__(self, doing: str = "auditing") -> None:
        self._doing, self._reads, self._estimated, self._last = doing, "text", False, 0.0

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """Keep the names."""
        self._reads = str(manifest.get("reads") or "text")
        self._doing = f"{self._doing} {manifest.get('model')}"

    def advanced(self, progress: Progress, /) -> None:
        """Show the progress; as soon as it can be estimated, the total time once."""
        if not self._estimated and progress.seconds_left is not None and progress.fraction != 1:
            self._estimated = True
            total = duration(progress.seconds + progress.seconds_left)
            self._say(f"about {total} in total, estimated from the first batch")
        self._show(progress)

    def _say(self, text: str) -> None:
        say(f"{self._doing}: {text}")

    def _show(self, progress: Progress) -> None:
        if progress.seconds - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = progress.seconds
            done = "" if progress.fraction is None else f"{100 * progress.fraction:.0f} %, "
            self._say(f"{done}{state(progress, self._reads)}")


class TerminalObserver(LineObserver):
    """A progress bar with documents, tokens, tokens per second and the time left.

    Args:
        console: The terminal.
        doing: The activity, printed before the model's name.
    """

    def __init__(self, console: Console, doing: str = "auditing") -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        super().__init__(doing)
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
        # It also turns within a batch, which can take minutes.
        self._bar = Bar(SpinnerColumn(), *columns, console=console)
        self._task = self._bar.add_task(doing, total=None, state="")

    def started(self, manifest: Mapping[str, Any], /) -> None:
        """Start drawing."""
        super().started(manifest)
        self._bar.update(self._task, description=self._doing)
        self._bar.start()

    def _say(self, text: str) -> None:
        self._bar.console.print(f"{text.capitalize()}.", highlight=False)

    def _show(self, progress: Progress) -> None:
        total, shown = None if progress.fraction is None else 1.0, state(progress, self._reads)
        self._bar.update(self._task, total=total, completed=progress.fraction or 0.0, state=shown)

    def finished(self) -> None:
        """Stop drawing and leave the last state on the screen."""
        self._bar.stop()


def state(progress: Progress, reads: str = "text") -> str:
    """The progress of an audit in words.

    Example:
        >>> state(Progress(3, 12_500, 950.4, 0.25, 13.2, 39.5))
        '3 documents, 12,500 tokens, 950 tokens/s, 40 s left'
        >>> state(Progress(3, 3, 0.5, 0.25, 6.0, 18.0), "images")
        '3 images, 0.5 images/s, 18 s left'
    """
    from fenchel.auditing.heads import READS

    parts = [number_of(progress.documents, READS[reads])]
    if reads == "images":
        parts.append(f"{progress.tokens_per_second:.3g} images/s")
    else:
        parts += [f"{progress.tokens:,} tokens", f"{progress.tokens_per_second:,.0f} tokens/s"]
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


def load_swap(folder: str | None, model: str | None = None) -> SwapReport | None:
    """The swap in a folder; None for no folder.

    Args:
        folder: The folder.
        model: Check that the swap is of this model and swapped single heads, before an audit of it.

    Raises:
        InputError: If the folder holds no swap, or not such a one.
    """
    if folder is None:
        return None
    from fenchel.auditing.swap_effects import exact_heads, require_same
    from fenchel.swap.report import SwapReport

    result = SwapReport.load(checked("folder", folder, name="swap"))
    if model is not None:
        require_same({"model": model}, result.manifest)
        exact_heads(result.conditions)
    return result


def show_result(report: AuditReport, folder: Path) -> None:
    """Print an audit to standard output, and the number of unsolved queries to standard error.

    Args:
        report: The audit.
        folder: The folder of its files.
    """
    from fenchel.auditing.report import summary_sentence, terminal_table

    if unsolved := sum(head["not_converged"] for head in report.heads):
        queries = sum(head["queries"] for head in report.heads)
        say(
            f"warning: {unsolved:,} of {queries:,} queries were not solved to the tolerance, so their numbers "
            "are less accurate. Raise --tol, or use --dtype float64."
        )
    if not is_first_process():
        return
    if not report.heads:
        said = f"This shard has no documents; that is recorded in {folder}."
        _standard_output().print(said, markup=False, highlight=False, soft_wrap=True)
        return
    sentences = [summary_sentence(report), report.effects.note if report.effects else ""]
    sentences += [pattern.found for pattern in report.suggestions[:1]]
    command, last = report.importance.command, f"Report: {folder / 'report.html'}"
    sentences.append(report.importance.said if command is None else f"{report.importance.said} Next:")
    show(terminal_table(report), *sentences, last=last if command is None else f"  {command}\n{last}")


def print_list(entries: Iterable[Entry]) -> None:
    """Print all entries, a table for each family; names are not broken."""
    from rich.text import Text

    from fenchel.catalogue.registry import NOTES

    console, entries, parts = _standard_output(), list(entries), list[Any]()
    shown = [name for name in _COLUMNS if console.width >= _WIDE or name not in _LEFT_OUT_IF_NARROW]
    for family, members in groupby(entries, lambda entry: entry.family):
        table = titled_table(family, *shown, left=shown)
        table.columns[0].no_wrap, table.columns[0].min_width = True, max(len(one.name) for one in entries)
        for one in members:
            table.add_row(*(Text(getattr(one, _COLUMNS[name])) for name in shown))
        parts += [table, *([NOTES[family]] if family in NOTES else [])]
    if console.width < _WIDE:
        note = f"Preference and evidence are listed from {_WIDE} columns on, and for each: fenchel catalogue NAME."
        parts.append(note)
    console.print(stacked(*parts))


def print_entry(entry: Entry, closeness: str | None, seed: int) -> None:
    """Print one entry, and how far its estimators are from the exact solution on its example."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fenchel.catalogue.registry import differences, entry_lines

    lines = Table.grid(padding=(0, 2))
    for label, line in entry_lines(entry):
        lines.add_row(Text(label, no_wrap=True), Text(line, overflow="fold"))
    parts: list[Any] = [(entry.title, "bold"), lines]
    if measured := differences(entry, closeness, seed):
        under = f" under {closeness}" if closeness else ""
        headings = ("estimator", "gap, at most", "total variation from exact", "output from exact")
        table = titled_table(f"On its example{under}, seed {seed}", *headings, left=headings[:1])
        for row in measured:
            numbers = map(short, (row.gap, row.total_variation, row.output))
            table.add_row(row.estimator.replace("_", " "), *numbers)
        parts += [table, (_CAPTION, "dim")]
    Console().print(stacked(*parts))
