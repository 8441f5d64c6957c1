"""The names that users may rely on, in three parts: what stays, what moves out of the package, and what goes.

``python -m tests.public_names`` adds new names to those that stay.
"""

import re
from importlib import import_module
from pathlib import Path

import typer

from website.pages import PACKAGES

LIST = Path(__file__).with_name("public_names.txt")
PARTS = ("stays", "moves", "goes")

# Every package with a page in the reference, and the modules that other pages import from.
MODULES = (
    *PACKAGES,
    "fenchel.functional.flex",
    "fenchel.reliability",
)


def commands() -> set[str]:
    """Commands and options of the command line, as they are written in a shell."""
    application = import_module("fenchel.cli.commands").application
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


def parts() -> dict[str, list[str]]:
    """The names of the list by part; a line ``# PART`` begins each part."""
    found: dict[str, list[str]] = {}
    for section in LIST.read_text().split("\n\n"):
        title, *listed = section.split("\n")
        found[title.removeprefix("# ")] = [line for line in listed if line]
    return found


def listed() -> list[str]:
    """The names of all parts."""
    return [name for part in parts().values() for name in part]


def removed(changelog: str) -> set[str]:
    """Names that a changelog says are gone: "Removed: `NAME`", or several with commas between."""
    lines = re.findall(r"Removed: (`[^`]+`(?:, `[^`]+`)*)", changelog)
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line)}


if __name__ == "__main__":
    found = parts()
    found["stays"] = sorted({*found["stays"], *(names() - {*listed()})})
    LIST.write_text("\n".join(f"# {part}\n" + "".join(f"{name}\n" for name in found[part]) for part in PARTS))
