"""The commands put together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from fenchel.arguments import shown
from fenchel.cli import audit, catalogue, compare, merge, report, reproduce, swap
from fenchel.cli.failure import say
from fenchel.version import __version__

__all__ = ["application", "run"]

application = typer.Typer(
    name="fenchel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (audit, merge, compare, swap, report, reproduce, catalogue):
    application.command(
        command.NAME,
        help=command.HELP,
        short_help=command.SUMMARY,
        epilog=command.EXAMPLE,
        no_args_is_help=getattr(command, "NEEDS_ARGUMENTS", True),
        cls=getattr(command, "Command", None),
    )(command.run)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: What follows ``fenchel``. Default: what the process was started with.

    Returns:
        The exit code, 2 for wrong usage. What the library raises is not caught.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = application(args=given, prog_name="fenchel", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            cast("Any", error).show()
        else:
            say(f"error: {_explained(error, given)}")
        return cast("Any", error).exit_code
    return code if isinstance(code, int) else 0


# Typer brings this class along or takes it from click, depending on its version.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def _explained(error: Any, given: Sequence[str]) -> str:
    """What is wrong with a command line, what was written there, and how to find out what can be."""
    text = str(error.format_message()).rstrip(".")
    written = _written(getattr(error, "param", None), given)
    if written is not None and written not in text:
        text += f", and not {shown(written)}"
    command = getattr(getattr(error, "ctx", None), "command_path", "fenchel")
    return f"{text}. Try '{command} -h' for help."


def _written(parameter: Any, given: Sequence[str]) -> str | None:
    """What was written after an option, the last time."""
    written = None
    for place, argument in enumerate(given):
        for option in getattr(parameter, "opts", ()):
            if argument.startswith(f"{option}="):
                written = argument.partition("=")[2]
            elif argument == option and place + 1 < len(given):
                written = given[place + 1]
    return written


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fenchel {__version__}")
        raise typer.Exit


@application.callback()
def describe(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Attention as inference: how far each head of a transformer is from the problem it approximates."""
