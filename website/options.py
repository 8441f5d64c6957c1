"""Tables of the options of commands and functions, from where they are declared."""

from __future__ import annotations

import re
from typing import Any

import typer

from fenchel.cli.commands import application
from fenchel.options import Options, declared
from website.docstrings import as_markdown
from website.marks import between_marks

__all__ = ["command_table", "function_table", "with_option_tables"]

_DEFAULT = re.compile(r"\s+\[default: (.*)\]$")
_HEADING = "| Option | Default | Meaning |\n|---|---|---|\n"


def with_option_tables(markdown: str) -> str:
    """A page with the options of commands between its marks, where it has some."""
    return between_marks(markdown, "options", command_table)


def command_table(name: str) -> str:
    """The options of a command, a row each."""
    command: Any = typer.main.get_command(application).commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    return _HEADING + "\n".join(
        _command_row(one) for one in command.params if one.param_type_name == "option" and one.name != "help"
    )


def _command_row(option: Any) -> str:
    said = _DEFAULT.search(option.help or "")
    value = said[1] if said else ("required" if option.required else option.default)
    default = "off" if option.is_flag else "" if value is None else str(value)
    meaning = _DEFAULT.sub("", option.help or "").replace("[", "\\[")
    metavar = "" if option.is_flag else option.metavar.replace("|", "\\|")
    return f"| `{option.opts[0]}{' ' * bool(metavar)}{metavar}` | {default} | {meaning} |"


def function_table(model: type[Options]) -> str:
    """The keyword arguments that a function takes from a model of options, a row each."""
    rows = (
        f"| `{option.name}` | {option.python_default} | {as_markdown(option.meaning)} |"
        for option in declared(model)
    )
    return _HEADING + "\n".join(rows)
