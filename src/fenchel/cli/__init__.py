"""The ``fenchel`` command."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from fenchel.cli.terminal import exit_code_of
from fenchel.errors import require_packages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after ``fenchel``. Default: those of the process.

    Returns:
        The exit code; ``docs/command-line.md`` lists them.
    """
    return exit_code_of(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    require_packages("cli", "typer", "rich", "pydantic")
    from fenchel.cli.commands import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show becomes a question mark instead of an error.
            stream.reconfigure(errors="replace")
    return run(arguments)
