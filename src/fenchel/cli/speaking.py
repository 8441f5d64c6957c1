"""One voice for the processes of a training: under ``torchrun`` they all fail alike, and one of them says why."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import typer

from fenchel.cli.failure import Interrupted
from fenchel.errors import FenchelError

__all__ = ["first_process_speaks"]

_INTERRUPTED = 130


@contextlib.contextmanager
def first_process_speaks() -> Iterator[None]:
    """Within it, processes other than the first of their machine end with an error's exit code and without its line.

    An interruption is told of by the first process of all. With ``FENCHEL_TRACEBACK=1`` everybody speaks.

    Raises:
        typer.Exit: In place of an error of this package or an interruption.
    """
    if os.environ.get("FENCHEL_TRACEBACK", "") not in ("", "0"):
        yield
        return
    try:
        yield
    except FenchelError as error:
        # What is wrong on another machine alone, such as missing data, is not known to the first process of all.
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        raise typer.Exit(error.exit_code) from error
    except (Interrupted, KeyboardInterrupt) as interrupt:
        if os.environ.get("RANK", "0") == "0":
            raise
        raise typer.Exit(_INTERRUPTED) from interrupt
