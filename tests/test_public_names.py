"""What users rely on stays, or the changelog says that it is gone."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests import frozen
from tests.public_names import LIST, MODULES, listed, names, removed

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
IMPORT = re.compile(r"^from (fenchel[\w.]*) import (.+)$", flags=re.MULTILINE)


@pytest.fixture(scope="module")
def now() -> set[str]:
    return names()


def is_below(name: str, above: str) -> bool:
    """Whether a name is another, or a name of that module, or an option of that command."""
    return name == above or name.startswith((f"{above}.", f"{above} "))


def test_no_public_name_goes_without_a_word(now):
    said = removed((ROOT / "CHANGELOG.md").read_text())
    gone = [name for name in {*listed()} - now if not any(is_below(name, above) for above in said)]
    assert sorted(gone) == [], "write 'Removed: `NAME`' into CHANGELOG.md for each"


def test_what_the_changelog_says_is_gone_is_gone(now):
    said = removed((ROOT / "CHANGELOG.md").read_text())
    assert sorted(name for name in now if any(is_below(name, above) for above in said)) == []


def test_every_public_name_is_in_the_list(now):
    assert sorted(now - set(listed())) == [], f"python -m tests.public_names writes them into {LIST.name}"


def test_frozen_tests_are_unchanged():
    assert len(frozen.listed()) > 8
    changed = [path for path, recorded in frozen.listed().items() if frozen.digest(ROOT / path) != recorded]
    assert changed == [], "a frozen test changes only where a name moves; python -m tests.frozen records that"


def test_public_names_exist_and_are_few(now):
    paths = [name.rpartition(".") for name in now if not name.startswith("fenchel ")]
    objects = [getattr(import_module(module), name) for module, _, name in paths]
    assert len({id(one) for one in objects if not isinstance(one, ModuleType)}) <= 160
    assert {"fenchel audit", "fenchel swap --out", "fenchel audit --loader"} <= now


# fenchel.nn imports these when it is imported; the other modules are imported when they are first used.
EAGER = {"fenchel.nn.evidence", "fenchel.nn.preference"}


@pytest.mark.parametrize("module", sorted({*MODULES} - {"fenchel"} - EAGER))
def test_public_modules_are_attributes_before_they_are_imported(module, monkeypatch):
    above, _, name = module.rpartition(".")
    import_module(module)
    monkeypatch.delattr(import_module(above), name)  # as in a process that has not imported it
    assert getattr(import_module(above), name) is sys.modules[module]


# A layer of one's own that audits see has no public base class yet.
NOT_YET_PUBLIC = {
    "decoding.py: fenchel.nn.inference.AttendingLayer",
    "decoding.py: fenchel.nn.inference.LayerCall",
    "decoding.py: fenchel.nn.inference.Problem",
}


def test_pages_and_examples_import_public_names_alone(now):
    found = [
        f"{path.name}: {module}.{name}"
        for path in PAGES
        for module, imported in IMPORT.findall(path.read_text())
        for name in re.findall(r"\w+", imported.split(" as ")[0].split("#")[0])
        if f"{module}.{name}" not in now and f"{module}.{name}" not in {*MODULES, "fenchel.integrations"}
    ]
    assert {*found} == NOT_YET_PUBLIC


def test_the_page_on_stability_names_every_public_module():
    page = (ROOT / "docs" / "stability.md").read_text()
    assert [module for module in MODULES if f"`{module}`" not in page] == []
