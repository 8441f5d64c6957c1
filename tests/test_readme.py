"""What the README shows is what happens."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.pages import page, python_blocks

ROOT = Path(__file__).parents[1]
README = page("README.md")
PYTHON = python_blocks("README.md")
SHELL = [
    line.split(" #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("code", PYTHON, ids=["layer", "solve"])
def test_python_examples_run(code, capsys):
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    if "layer" in names:
        assert float((names["attended"] - names["inferred"]).detach().abs().max()) > 1e-4
        assert printed.startswith("tensor(")
    else:
        first, exact = names["attention"], names["optimum"]
        assert ((first.mean - exact.mean).norm(dim=-1) <= first.mean_error + 1e-6).all()
        assert printed.count("tensor") == 3


def test_make_targets_and_commands_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {line.split()[1] for line in SHELL if line.startswith("make ")} <= targets
    (audit,) = [shlex.split(line) for line in SHELL if line.startswith("fenchel audit")]
    assert audit[audit.index("--text") + 1] == "demo"


def test_links_lead_to_files():
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert len(links) > 4
    # The picture is drawn from a real report and added with it.
    assert [link for link in links if not (ROOT / link).exists() and not link.endswith(".png")] == []
