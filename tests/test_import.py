"""What `import fenchel` brings in: little beyond torch, so that it costs little."""

import json
import subprocess
import sys

import pytest

# Packages whose modules a bare import may run; every other one waits until it is asked for.
CORE = {
    "arguments", "family", "closeness", "conjugate", "errors", "estimate", "inference", "layout",
    "preference", "problem", "rounding", "selection", "solver", "tensors", "version",
}  # fmt: skip

NEW = """
import json, sys
import torch
before = set(sys.modules)
for statement in {statements}:
    exec(statement)
    print(json.dumps(sorted(set(sys.modules) - before)))
"""
AUDITS = ("audit", "compare", "auditing", "comparing", "reproducing", "swap")
SHOWN = "shown = [getattr(fenchel, name) for name in dir(fenchel) if name not in {names}]"
EVERYTHING = SHOWN.format(names=AUDITS)
CAPTURE = ("Capture", "CapturedHead")
PROBLEMS = SHOWN.format(names=(*AUDITS, *CAPTURE, "functional", "nn", "integrations", "catalogue"))


@pytest.fixture(scope="module")
def loaded() -> list[list[str]]:
    """Modules that an import loads in a process that has torch already; those of problems; those of everything else."""
    program = NEW.format(statements=["import fenchel", PROBLEMS, EVERYTHING])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def foreign(modules: list[str]) -> list[str]:
    """Those that are neither ours nor Python's own; torch's own count, since torch loads some only when asked."""
    return [name for name in modules if name.split(".")[0] not in {*sys.stdlib_module_names, "fenchel"}]


def test_a_bare_import_brings_in_the_core_alone(loaded):
    bare, problems, _ = loaded
    assert {name for name in bare if name.startswith("fenchel.")} == {"fenchel.version"}
    assert foreign(problems) == []
    assert {name.split(".")[1] for name in problems if name.startswith("fenchel.")} == CORE
    # Slow ones of Python's own, which torch has not needed.
    assert {"multiprocessing", "sqlite3", "unittest", "xml", "http", "asyncio"} & set(problems) == set()


def test_every_package_waits_for_what_it_needs(loaded):
    # torch's compiler and sympy, which take as long as torch itself, above all.
    *_, everything = loaded
    assert "fenchel.nn.attention" in everything
    assert foreign(everything) == []
    assert foreign(["torch._dynamo", "fenchel.nn", "json", "sympy.core"]) == ["torch._dynamo", "sympy.core"]
