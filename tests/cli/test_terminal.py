"""What a person sees: progress, every failure as one line and a code, and Ctrl-C at once or at the next batch."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import fenchel
from fenchel import errors
from fenchel.auditing.audit_report import AUDIT
from fenchel.cli import main, terminal
from fenchel.cli.terminal import (
    Interrupted,
    LineObserver,
    TerminalObserver,
    exit_code_of,
    interruptible,
    observer_of_standard_error,
    show_result,
)
from fenchel.io.runs import Progress, SilentObserver


def test_a_terminal_gets_a_bar_a_file_lines_and_other_ranks_nothing(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert type(observer_of_standard_error()) is LineObserver
    monkeypatch.setenv("RANK", "1")
    assert type(observer_of_standard_error()) is SilentObserver
    monkeypatch.setenv("RANK", "0")
    assert type(observer_of_standard_error()) is LineObserver
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert isinstance(observer_of_standard_error(), TerminalObserver)


def test_a_folder_is_printed_by_its_name(capsys):
    report: Any = SimpleNamespace(heads=[])
    show_result(report, Path("a[b]"))
    assert capsys.readouterr().out.endswith("recorded in a[b].\n")
    screen = io.StringIO()
    observer = TerminalObserver(Console(file=screen, force_terminal=True, width=120))
    observer.started({"model": "demo"})
    observer.advanced(Progress(1, 1_500, 750.0, 0.25, 2.0, 3_725.0))
    observer.finished()
    assert re.search(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]\S* auditing demo", screen.getvalue())
    assert "in total, estimated from the first batch." in screen.getvalue()
    assert "1 document, 1,500 tokens, 750 tokens/s, 1 h 2 min left" in screen.getvalue()


def test_a_file_gets_the_estimate_once_and_a_line_every_thirty_seconds(capsys):
    observer = LineObserver()
    observer.started({"model": "demo"})
    for second in range(1, 101):
        observer.advanced(Progress(second, 10 * second, 10.0, second / 100, second, 100.0 - second))
    observer.finished()
    assert capsys.readouterr().err.splitlines() == [
        "fenchel: auditing demo: about 1 min 40 s in total, estimated from the first batch",
        "fenchel: auditing demo: 30 %, 30 documents, 300 tokens, 10 tokens/s, 1 min 10 s left",
        "fenchel: auditing demo: 60 %, 60 documents, 600 tokens, 10 tokens/s, 40 s left",
        "fenchel: auditing demo: 90 %, 90 documents, 900 tokens, 10 tokens/s, 10 s left",
    ]
    unknown = LineObserver("swapping")
    unknown.started({"model": "demo", "reads": "images"})
    for seconds in (29.0, 31.0, 32.0):
        unknown.advanced(Progress(31, 31, 1.0, None, seconds, None))
    assert capsys.readouterr().err == "fenchel: swapping demo: 31 images, 1 images/s\n"


def raising(error: BaseException):
    def command() -> int:
        raise error

    return command


OUT_OF_MEMORY = "out of memory.*Lower --batch-size.*"
MISSING = errors.MissingExtraError("rich", "cli")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.InputError("said\n  in\n\nlines"), 3, "said in lines"),
        (errors.ProblemError("said"), 3, "said"),
        *((kind("said"), 4, "said") for kind in (errors.ModelError, errors.CaptureError)),
        (errors.ConvergenceError("3 queries"), 5, "3 queries"),
        (errors.OutputError("cannot write"), 6, "cannot write"),
        (OSError(errno.ENOSPC, "No space left", "/data/a.json"), 6, r"/data/a\.json: No space left\."),
        (MISSING, 7, re.escape(str(MISSING))),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("interrupted; 3 documents are saved"), 130, "interrupted; 3 documents are saved"),
        *((kind("CUDA out of memory"), 1, OUT_OF_MEMORY) for kind in (MemoryError, RuntimeError)),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, OUT_OF_MEMORY),
        *((kind("x"), 1, f"unexpected {kind.__name__}.*please report it.*") for kind in (KeyError, OSError)),
    ],
)
def test_each_error_has_its_code_and_one_line(capsys, error, code, said):
    assert exit_code_of(raising(error)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"fenchel: {'' if code == 130 else 'error: '}{said}\n", err)


def test_traceback_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setenv("FENCHEL_TRACEBACK", "1")
    assert exit_code_of(raising(errors.InputError("bad"))) == 3
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("fenchel: error: bad\n")
    monkeypatch.setenv("FENCHEL_TRACEBACK", "0")
    exit_code_of(raising(errors.InputError("bad")))
    assert capsys.readouterr().err == "fenchel: error: bad\n"


def test_warnings_are_lines_too(capsys):
    def command() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # catch_warnings puts back its own way to show them.
            warnings.showwarning = terminal._show_warning
            warnings.warn("the mask is odd", stacklevel=1)
        return 0

    before = warnings.showwarning
    assert exit_code_of(command) == 0
    assert capsys.readouterr().err == "fenchel: warning: the mask is odd\n"
    assert warnings.showwarning is before


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_the_command_says_how_to_get_it(capsys, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["audit", "demo"]) == 7
    assert capsys.readouterr().err == f"fenchel: error: {errors.MissingExtraError(package, 'cli')}\n"


def test_a_terminal_that_cannot_show_a_sign_shows_a_question_mark(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["--version"]) == 0
    sys.stdout.write("5.8\u202f%")
    sys.stdout.flush()
    assert shown.getvalue().decode() == f"fenchel {fenchel.__version__}\n5.8?%"


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="without the device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full_is_one_line_and_a_closed_pipe_none(unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "fenchel", "--help"]
    with FULL.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 6
    said = "the output cannot be written: No space left on device. Write it elsewhere."
    assert done.stderr == f"fenchel: error: {said}\n"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (1, "")


class Lost:
    """Is interrupted while it is destroyed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_interrupts_at_once_in_the_main_thread_alone_and_is_given_back(tmp_path):
    before, seen = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with interruptible(SilentObserver(), AUDIT, tmp_path):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
    with (
        pytest.raises(Interrupted, match="before anything was saved"),
        interruptible(SilentObserver(), AUDIT, tmp_path),
    ):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_ends_a_command_that_has_not_begun(capsys, monkeypatch):
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    assert exit_code_of(lambda: os.kill(os.getpid(), signal.SIGINT) or 0) == 0
    assert (codes, capsys.readouterr().err) == ([130], "fenchel: interrupted\n")


def test_an_interrupt_that_was_lost_comes_at_the_next_batch(tmp_path, monkeypatch):
    recording, told = SilentObserver(), []
    first, second = (Progress(1, tokens, 10.0, None, 1.0, None) for tokens in (5, 10))
    monkeypatch.setattr(recording, "advanced", told.append)
    with interruptible(recording, AUDIT, tmp_path) as observer:
        observer.advanced(first)
        lost = Lost()
        del lost
        with pytest.raises(KeyboardInterrupt):
            observer.advanced(second)
    assert told == [first, second]
