"""What `import fenchel` brings in: little beyond torch, so that it costs little."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Packages whose modules a bare import may run; every other one waits until it is asked for.
CORE = {
    "arguments",
    "family",
    "certificate",
    "closeness",
    "conjugate",
    "errors",
    "estimate",
    "inference",
    "layout",
    "preference",
    "problem",
    "rounding",
    "selection",
    "solver",
    "version",
}

NEW = """
import json, sys
import torch
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def brought_in(statement: str) -> list[str]:
    """Modules that a statement loads in a process that has torch already."""
    done = subprocess.run(
        [sys.executable, "-c", NEW.format(statement=statement)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def foreign(modules: list[str]) -> list[str]:
    """Those that are neither ours nor Python's own; torch's own count, since torch loads some only when asked."""
    return [name for name in modules if name.split(".")[0] not in {*sys.stdlib_module_names, "fenchel"}]


@pytest.fixture(scope="module")
def bare() -> list[str]:
    return brought_in("import fenchel")


def test_a_bare_import_brings_in_nothing_but_this_package(bare):
    assert foreign(bare) == []


def test_a_bare_import_brings_in_the_core_alone(bare):
    ours = {name.split(".")[1] for name in bare if name.startswith("fenchel.")}
    assert ours == CORE


def test_a_bare_import_starts_nothing(bare):
    # Slow ones of Python's own, which torch has not needed.
    assert {"multiprocessing", "sqlite3", "unittest", "xml", "http", "asyncio"} & set(bare) == set()


def test_every_package_waits_for_what_it_needs():
    # torch's compiler and sympy, which take as long as torch itself, above all.
    loaded = brought_in("import fenchel; shown = [getattr(fenchel, name) for name in dir(fenchel)]")
    assert "fenchel.nn.attention" in loaded
    assert foreign(loaded) == []


def test_what_is_brought_in_would_be_found():
    assert "torch._dynamo" in foreign(brought_in("import fenchel, torch._dynamo"))
