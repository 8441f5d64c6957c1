"""What mkdocs asks for while it builds: pages that are made, formulas, files of every page, and checks of it.

What is wrong with a page is a warning that names it, for which a strict build fails.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in (".", "src")]

from fenchel.catalogue.registry import FAMILIES  # noqa: E402
from fenchel.errors import InputError  # noqa: E402
from website.mathml import with_mathml  # noqa: E402
from website.pages import ROOT, ROOT_PAGES, family_page, generated_pages, with_tables  # noqa: E402

MOST_WORDS = 1500
_FORMULAS_FONT = "STIXTwoMath-Regular.ttf"  # SIL Open Font License; the package ziamath brings it
_IMAGE_WITHOUT_WORDS = re.compile(r'<img\b(?![^>]*\balt="[^"]*\w)[^>]*>')
_LINK_OR_PICTURE = re.compile(r'<a\b[^>]*>.*?</a>|<img\b[^>]*\bsrc="([^":]+)"[^>]*>', flags=re.DOTALL)
_CELL = re.compile(r"<td[^>]*>.*?</td>", flags=re.DOTALL)
# benchmarks/families.py writes it.
_MADE_PART = re.compile(r"<!-- families -->.*?<!-- end of families -->", flags=re.DOTALL)
_LONG_CODE = re.compile(r"(?<=<code>)[^<]{16,}(?=</code>)")

_log = logging.getLogger("mkdocs.hooks.fenchel")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation lists a page for each family of the catalogue. What is in the folder has to be an older site."""
    place = Path(config.site_dir)
    if place.is_dir() and any(place.iterdir()) and not (place / "search" / "search_index.json").is_file():
        raise ConfigurationError(
            f"{place} has other things in it than a site, which would be lost. Give an empty or new folder."
        )
    for section in config.nav or []:
        if isinstance(section, dict) and "Catalogue" in section:
            section["Catalogue"] = ["catalogue.md", *map(family_page, FAMILIES)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in ``docs``: pages, and the styles, scripts and fonts of every page."""
    for path, content in generated_pages().items():
        files.append(File.generated(config, path, content=content))
    ziamath = find_spec("ziamath")
    font = Path(str(ziamath and ziamath.origin)).parent / "fonts" / _FORMULAS_FONT
    for path in (*sorted((ROOT / "website" / "static").iterdir()), font):
        files.append(File.generated(config, f"assets/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Check the length, fill in the tables, and have links lead to pages of the site. A search finds names last."""
    path = page.file.src_uri
    made = path.startswith(("api/", "catalogue/", "notebooks/")) or path.upper()[:-3] + ".md" in ROOT_PAGES
    words = len(_MADE_PART.sub("", markdown).split())
    if not made and words > MOST_WORDS:
        _log.warning("%s has %d words; expected at most %d. Cut or divide it.", path, words, MOST_WORDS)
    boost = 0.1 if path.startswith("api/") else 0.3 if made and "/" not in path else 1.0
    page.meta["search"] = {"boost": boost}
    return re.sub(
        r"\]\((?:\.\./|docs/)?([\w./-]+)\.(?:md|ipynb)(?=[#)])",
        lambda link: f"]({link[1].lower()}.md",
        with_tables(markdown),
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the formulas; let long names in tables break where they have a sign; let pictures be opened."""
    for image in _IMAGE_WITHOUT_WORDS.findall(html):
        _log.warning("%s has an image without alternative text: %s", page.file.src_uri, image)
    try:
        html = with_mathml(html)
    except InputError as error:
        _log.warning("%s: %s", page.file.src_uri, error)
    html = _CELL.sub(lambda cell: _LONG_CODE.sub(_with_breaks, cell[0]), html)
    opened = '<a class="picture" href="{}" title="Open the picture">{}</a>'
    return _LINK_OR_PICTURE.sub(lambda one: opened.format(one[1], one[0]) if one[1] else one[0], html)


def _with_breaks(code: re.Match[str]) -> str:
    return re.sub(r"([./(_])(?=.)", r"\1<wbr>", code[0])


def on_post_build(config: MkDocsConfig) -> None:
    """A page for what is not found is one of servers: its links begin at their root, which a folder does not have."""
    if not config.site_url:
        (Path(config.site_dir) / "404.html").unlink()
