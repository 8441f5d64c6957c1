"""Pages that lie in the root of the repository, which the site shows beside those of ``docs``."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["as_on_the_site", "root_pages"]

_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def root_pages(root: Path) -> dict[str, str]:
    """The pages of the root, by their paths on the site.

    Args:
        root: The root of the repository.

    Returns:
        Markdown whose links are those of the site.
    """
    return {
        path: re.sub(r"\]\(docs/", "](", (root / name).read_text(encoding="utf-8"))
        for name, path in _PAGES.items()
    }


def as_on_the_site(markdown: str) -> str:
    """A page of ``docs`` whose links to pages of the root and to notebooks lead to the site's.

    Args:
        markdown: A page.

    Returns:
        The page.

    Example:
        >>> as_on_the_site("see [here](../CHANGELOG.md)")
        'see [here](changelog.md)'
        >>> as_on_the_site("[run it](notebooks/audit-a-model.ipynb)")
        '[run it](notebooks/audit-a-model.md)'
    """
    for name, path in _PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({path}")
    return re.sub(r"\]\((notebooks/[\w-]+)\.ipynb\)", r"](\1.md)", markdown)
