"""What is wrong with a page fails the build and is named; what is in the folder is replaced only if it is a site."""

import logging
from pathlib import Path

import pytest

pytest.importorskip("material", reason="the site needs pip install 'fenchel[docs]'")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, ConfigurationError

from website import hooks

HOOKS = "from website.hooks import on_config, on_page_content, on_page_markdown\n"


def build_pages(folder: Path, page: str, name: str = "index") -> None:
    (folder / "docs").mkdir()
    (folder / "docs" / f"{name}.md").write_text(f"# Here\n\n{page}\n")
    (folder / "docs" / "one.png").write_bytes(b"")
    (folder / "checks.py").write_text(HOOKS)
    (folder / "mkdocs.yml").write_text(
        "site_name: mine\nplugins: []\nhooks: [checks.py]\n"
        "markdown_extensions: [pymdownx.arithmatex: {generic: true}]\n"
    )
    build(load_config(str(folder / "mkdocs.yml"), strict=True, site_url="https://here.org"))


LONG = "word " * hooks.MOST_WORDS


@pytest.mark.parametrize(
    ("page", "name", "message"),
    [
        ("[there](there.md)", "index", "'index.md' contains a link 'there.md'"),
        ("![](one.png)", "index", "index.md has an image without alternative text: <img"),
        ('<p><img src="one.png"></p>', "index", "index.md has an image without alternative text: <img"),
        (LONG, "index", "index.md has 1502 words; expected at most 1500"),
        ("$\\nosuch$", "index", "index.md: \\nosuch in the formula"),
    ],
)
def test_a_fault_fails_the_build_and_its_page_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, page: str, name: str, message: str
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Abort, match="Aborted with 1 warnings in strict mode"),
    ):
        build_pages(tmp_path, page, name)
    (warning,) = (one.getMessage() for one in caplog.records if one.name.startswith("mkdocs"))
    assert message in warning


def test_a_page_of_the_most_words_is_built(tmp_path: Path) -> None:
    build_pages(tmp_path, f"{LONG[15:]}\n\n![One](one.png)")
    assert (tmp_path / "site" / "index.html").is_file()


def test_a_folder_that_is_no_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="has other things in it than a site, which would be lost"):
        build_pages(tmp_path, "Here.")
    assert (tmp_path / "site" / "letter.txt").read_text() == "mine"
