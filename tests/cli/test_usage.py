"""Wrong usage ends with 2, help says what there is, and the page in docs says the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fenchel
from fenchel.cli.commands import numbers
from website.pages import with_tables

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
COMMANDS = ("audit", "merge", "report", "compare", "swap", "reproduce", "catalogue")


def options_on_page(command: str) -> dict[str, str]:
    """Options in the table of a command's section, with what stands where their value goes."""
    table = with_tables(PAGE).split(f"## fenchel {command} ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(--[a-z-]+)(?: ([^`]*))?` \|", table, flags=re.MULTILINE)
    return {name: value.replace("\\|", "|") for name, value in rows}


def options_in_help(text: str) -> dict[str, str]:
    found = re.findall(r"^ {2}(?:-h, )?(--[a-z-]+)(?: (\S+))?", text, flags=re.MULTILINE)
    return {name: value for name, value in found if name != "--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_page_and_help_list_the_same_options(command, name):
    shown = options_in_help(command(name, "--help").out)
    listed = options_on_page(name)
    assert set(listed) == set(shown)
    for option, value in shown.items():
        if not value.startswith("<"):
            assert listed[option] == value


def test_a_drifted_page_would_be_noticed():
    assert options_in_help("  --layers LIST  Layers\n  -h, --help  Show") == {"--layers": "LIST"}
    assert "--layers" in options_on_page("audit")
    assert "--partial" not in options_on_page("audit")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_is_a_command_line(command, name):
    done = command(name, "--help")
    assert done.code == 0
    assert f"Example: fenchel {'audit' if name in ('merge', 'compare') else name} " in " ".join(
        done.out.split()
    )
    assert done.err == ""


def test_each_option_has_a_help_line(command):
    for name in COMMANDS:
        words = " ".join(command(name, "--help").out.split())
        for option in options_on_page(name):
            assert re.search(rf"{option}( \S+)? [A-Z]", words), option


def test_short_help_and_help_of_all(command):
    assert command("audit", "-h").out == command("audit", "--help").out
    everything = command("--help")
    assert everything.code == 0
    assert all(name in everything.out for name in COMMANDS)


def test_version(command):
    assert command("--version") == (0, f"fenchel {fenchel.__version__}\n", "")


AUDIT = ["audit", "demo", "--text", "t", "--out", "o"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "demo", "--out", "o"], "Missing option '--text', '--images' or '--loader'"),
        (["audit", "demo", "--text", "t"], "Missing option '--out'"),
        (["swap", "demo", "--out", "o"], "Missing option '--text', '--pairs', '--images' or '--loader'"),
        ([*AUDIT, "--nonsense"], "No such option: --nonsense"),
        ([*AUDIT, "--alpha", "much"], "Invalid value for '--alpha'"),
        ([*AUDIT, "--space", "outer"], "'outer' is not one of"),
        (["swap", *AUDIT[1:], "--alphas", "much"], "'much' is not a list of numbers"),
        (["merge", "a", "b"], "say with --out where to write"),
        (["compare", "a"], "expected two or more"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_wrong_usage(command, arguments, message):
    done = command(*arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_numbers_may_have_spaces_and_a_range_one_number():
    assert numbers(" 7, 1 ,3 - 5,4,2-2", "--layers", 100) == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "-3", "3-", "4-2", "1.5", "1;2"])
def test_what_are_no_numbers(text):
    import typer

    with pytest.raises(typer.BadParameter, match="is not a list of numbers and ranges, such as 1,3-5"):
        numbers(text, "--layers", 100)


def test_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "fenchel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"fenchel {fenchel.__version__}\n"
