"""Every name that is or was public, in a list to which ``python -m tests.public_names`` adds new ones."""

import re
from importlib import import_module
from pathlib import Path

import typer

from website.pages import PACKAGES

LIST = Path(__file__).with_name("public_names.txt")

# Every package with a page in the reference, and the modules that other pages import from.
MODULES = (*PACKAGES, "fenchel.functional.flex", "fenchel.reliability")


def commands() -> set[str]:
    """Commands and options of the command line, as they are written in a shell."""
    application = import_module("fenchel.cli.commands").application
    found: set[str] = set()
    for name, command in typer.main.get_command(application).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        found.add(f"fenchel {name}")
        found |= {
            f"fenchel {name} {option}"
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        }
    return found


def names() -> set[str]:
    """What is public now: names of modules, commands and options."""
    return {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__} | commands()


def listed() -> list[str]:
    return LIST.read_text().splitlines()


def removed(changelog: str) -> set[str]:
    """Names that a changelog says are gone: "Removed: `NAME`", or several with commas between."""
    lines = re.findall(r"Removed: (`[^`]+`(?:, `[^`]+`)*)", changelog)
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line)}


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in sorted({*listed(), *names()})))
