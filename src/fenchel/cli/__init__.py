"""The ``fenchel`` command: subcommands that connect their options with functions of the library."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from fenchel.cli.terminal import exit_code_of
from fenchel.errors import require_packages


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: What follows ``fenchel``. Default: what the process was started with.

    Returns:
        The exit code; ``docs/command-line.md`` lists them.
    """
    return exit_code_of(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    require_packages("cli", "typer", "rich", "pydantic")
    from fenchel.cli.commands import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or log that cannot show a sign shows a question mark; the work that was done is not lost.
            stream.reconfigure(errors="replace")
    return run(arguments)
