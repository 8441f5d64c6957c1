"""The commands put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fenchel import __version__
from fenchel.cli import audit, experiment, merge, report, swap, train

__all__ = ["application", "run"]

application = typer.Typer(
    name="fenchel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (audit, merge, report, swap, train, experiment):
    application.command(
        command.NAME,
        help=command.HELP,
        short_help=command.SUMMARY,
        epilog=command.EXAMPLE,
        no_args_is_help=True,
    )(command.run)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: What follows ``fenchel``. Default: what the process was started with.

    Returns:
        The exit code, 2 for wrong usage. What the library raises is not caught.
    """
    try:
        application(args=None if arguments is None else list(arguments), prog_name="fenchel")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


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
