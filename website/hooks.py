"""What mkdocs asks for while it builds: pages that are generated, formulas, and files that every page needs."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fenchel.catalogue import FAMILIES  # noqa: E402
from website.breaks import with_breaks  # noqa: E402
from website.catalogue import catalogue_pages, family_page, with_overview  # noqa: E402
from website.mathml import with_mathml  # noqa: E402
from website.notebook import notebook_pages  # noqa: E402
from website.options import with_option_tables  # noqa: E402
from website.pictures import with_links_to_pictures  # noqa: E402
from website.reference import reference_pages  # noqa: E402
from website.root_pages import as_on_the_site, root_pages  # noqa: E402
from website.search_boosts import search_boost  # noqa: E402
from website.static_files import static_files  # noqa: E402

__all__ = ["on_config", "on_files", "on_page_content", "on_page_markdown", "on_post_build"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation lists a page for each family of the catalogue, whatever there is."""
    for section in config.nav or []:
        if isinstance(section, dict) and "Catalogue" in section:
            section["Catalogue"] = ["catalogue.md", *(family_page(family) for family in FAMILIES)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in ``docs``: the catalogue, the reference, notebooks, the pages of the root, styles and fonts."""
    pages = (
        root_pages(ROOT) | notebook_pages(ROOT / "docs" / "notebooks") | reference_pages() | catalogue_pages()
    )
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for path, source in static_files(ROOT / "website" / "static").items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave ``docs`` on disk stay on the site; the catalogue is filled in; the page gets its weight."""
    page.meta["search"] = {"boost": search_boost(page.file.src_uri)}
    return with_option_tables(with_overview(as_on_the_site(markdown)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the formulas; let long names in tables break where they have a sign; let pictures be opened."""
    return with_links_to_pictures(with_breaks(with_mathml(html)))


def on_post_build(config: MkDocsConfig) -> None:
    """A page for what is not found is one of servers: its links begin at their root, which a folder does not have."""
    if not config.site_url:
        (Path(config.site_dir) / "404.html").unlink()
