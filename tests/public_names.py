"""The names that users may rely on, and the list of all that ever were: `python -m tests.public_names` adds to it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import typer

from website.reference import PACKAGES

__all__ = ["LIST", "MODULES", "commands", "listed", "names", "removed"]

LIST = Path(__file__).with_name("public_names.txt")

# Every package with a page in the reference, and the modules that other pages import from.
MODULES = (
    *PACKAGES,
    "fenchel.auditing.capture",
    "fenchel.auditing.report",
    "fenchel.data.augment",
    "fenchel.data.randomness",
    "fenchel.data.text",
    "fenchel.experiments.interval",
    "fenchel.functional.flex",
    "fenchel.models.cloze",
    "fenchel.models.decoding",
    "fenchel.models.translation",
    "fenchel.reliability",
    "fenchel.train.task",
)


def commands() -> set[str]:
    """Commands and options of the command line, as they are written in a shell."""
    application = import_module("fenchel.cli.application").application
    said: set[str] = set()
    for name, command in typer.main.get_command(application).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        said.add(f"fenchel {name}")
        said |= {
            f"fenchel {name} {option}"
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        }
    return said


def names() -> set[str]:
    """What is public now: names of modules, commands and options."""
    said = {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__}
    return said | commands()


def listed() -> list[str]:
    """What ever was public, as it is kept."""
    return LIST.read_text().splitlines()


def removed(changelog: str) -> set[str]:
    """Names that a changelog says are gone, in lines with "Removed: `NAME`" or several with commas between."""
    lines = re.findall(r"Removed: (`[^`]+`(?:, `[^`]+`)*)", changelog)
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line)}


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in sorted({*listed(), *names()})))
