"""Whatever goes wrong is one line and a code."""

from __future__ import annotations

import errno
import io
import sys
import warnings

import pytest

from fenchel import errors
from fenchel.cli import failure, main
from fenchel.cli.failure import Interrupted, explained


def raising(error: BaseException):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("the text is empty"), 3),
        (errors.ProblemError("alpha is -1"), 3),
        (errors.ModelError("no such model"), 4),
        (errors.CaptureError("a head was not called"), 4),
        (errors.ConvergenceError("3 queries"), 5),
        (errors.OutputError("cannot write"), 6),
        (errors.MissingExtraError("rich", "cli"), 7),
    ],
)
def test_each_error_has_its_code_and_one_line(capsys, error, code):
    assert explained(raising(error)) == code
    assert capsys.readouterr() == ("", f"fenchel: error: {error}\n")


def test_a_message_of_several_lines_becomes_one(capsys):
    assert explained(raising(errors.ModelError("first\n  second\n\nthird"))) == 4
    assert capsys.readouterr().err == "fenchel: error: first second third\n"


def test_what_the_system_refuses_is_an_output_error(capsys):
    assert explained(raising(OSError(errno.ENOSPC, "No space left on device", "/data/heads.json"))) == 6
    assert capsys.readouterr().err == "fenchel: error: /data/heads.json: No space left on device.\n"


def test_running_out_of_memory_says_what_to_lower(capsys):
    reasons = ("CUDA out of memory. Tried", "DefaultCPUAllocator: can't allocate memory")
    for error in (MemoryError(), *map(RuntimeError, reasons)):
        assert explained(raising(error)) == 1
        line = capsys.readouterr().err
        assert "out of memory" in line
        assert "Lower --batch-size" in line


def test_the_unexpected_asks_for_a_report(capsys):
    for error in (KeyError("x"), RuntimeError("odd"), ZeroDivisionError("by zero"), OSError("odd")):
        assert explained(raising(error)) == 1
        line = capsys.readouterr().err
        assert f"unexpected {type(error).__name__}" in line
        assert "please report it" in line
        assert line.count("\n") == 1


def test_traceback_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setenv("FENCHEL_TRACEBACK", "1")
    assert explained(raising(errors.InputError("bad"))) == 3
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("fenchel: error: bad\n")
    monkeypatch.setenv("FENCHEL_TRACEBACK", "0")
    explained(raising(errors.InputError("bad")))
    assert capsys.readouterr().err == "fenchel: error: bad\n"


def test_interruption_is_130(capsys):
    assert explained(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "fenchel: interrupted\n"
    assert explained(raising(Interrupted("interrupted; 3 documents are saved"))) == 130
    assert capsys.readouterr().err == "fenchel: interrupted; 3 documents are saved\n"


def test_warnings_are_lines_too(capsys):
    def command() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # catch_warnings puts back its own way to show them.
            warnings.showwarning = failure._show_warning
            warnings.warn("the mask is odd", stacklevel=1)
        return 0

    before = warnings.showwarning
    assert explained(command) == 0
    assert capsys.readouterr().err == "fenchel: warning: the mask is odd\n"
    assert warnings.showwarning is before


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_the_command_says_how_to_get_it(capsys, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["audit", "demo"]) == 7
    assert capsys.readouterr().err == (
        f"fenchel: error: {package} is not installed. Run: pip install 'fenchel[cli]'\n"
    )


def test_a_terminal_that_cannot_show_a_sign_shows_a_question_mark(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["--version"]) == 0
    sys.stdout.write("5.8\u202f%")
    sys.stdout.flush()
    assert shown.getvalue().endswith(b"5.8?%")
