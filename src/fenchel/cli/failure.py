"""Every failure of a command as one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TextIO

from fenchel.errors import FenchelError, OutputError

__all__ = ["Interrupted", "explained", "one_line", "say"]

_UNEXPECTED = 1
_INTERRUPTED = 130
_LONGEST = 1000


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The user stopped a command; the message says what was written and how to go on."""


def explained(command: Callable[[], int]) -> int:
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
    except (Interrupted, KeyboardInterrupt) as interrupt:
        _show_traceback()
        say(str(interrupt) or "interrupted")
        return _INTERRUPTED
    except FenchelError as error:
        _show_traceback()
        say(f"error: {error}")
        return error.exit_code
    except MemoryError as error:
        return _out_of_memory(error)
    except RuntimeError as error:
        if "out of memory" in str(error) or "can't allocate memory" in str(error):
            return _out_of_memory(error)
        return _unexpected(error)
    except Exception as error:
        return _unexpected(error)
    finally:
        warnings.showwarning = before


def say(message: str) -> None:
    """Writes one line to standard error, with the program's name before it."""
    print(f"fenchel: {one_line(message)}", file=sys.stderr, flush=True)  # noqa: T201


def one_line(message: str) -> str:
    """The same words on one line, cut off where they are more than anybody reads."""
    text = " ".join(message.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _out_of_memory(error: Exception) -> int:
    _show_traceback()
    say(
        f"error: out of memory ({error}). Lower --batch-size or --max-length and start again; an audit or a swap "
        "goes on where it was with --resume."
    )
    return _UNEXPECTED


def _unexpected(error: Exception) -> int:
    if isinstance(error, OSError) and error.filename is not None:
        _show_traceback()
        say(f"error: {error.filename}: {error.strerror or error}.")
        return OutputError.exit_code
    _show_traceback()
    say(
        f"error: unexpected {type(error).__name__}: {error}. This is a fault in fenchel: please report it, "
        "with what FENCHEL_TRACEBACK=1 shows."
    )
    return _UNEXPECTED


def _show_traceback() -> None:
    if os.environ.get("FENCHEL_TRACEBACK", "") not in ("", "0"):
        traceback.print_exc()


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"warning: {message}")
