"""Pages that lie in the root of the repository, which the site shows beside those of ``docs``."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["as_on_the_site", "root_pages"]

# Begun by a dot or a letter that is no scheme: a path.
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![\w+.-]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def root_pages(root: Path) -> dict[str, str]:
    """The pages of the root, by their paths on the site; the README is there as the site's first page.

    Args:
        root: The root of the repository.

    Returns:
        Markdown whose links are those of the site.
    """
    return {
        path.name.lower(): _with_links(path.read_text(encoding="utf-8"), inside_docs=False)
        for path in sorted(root.glob("*.md"))
        if path.name != "README.md"
    }


def as_on_the_site(markdown: str) -> str:
    """A page of ``docs`` whose links to pages of the root and to notebooks lead to the site's.

    Args:
        markdown: A page.

    Returns:
        The page. Of a link to a file that the site does not have its text is left.

    Example:
        >>> as_on_the_site("see [here](../CHANGELOG.md) and [there](audit.md#files)")
        'see [here](changelog.md) and [there](audit.md#files)'
        >>> as_on_the_site("[run it](notebooks/audit-a-model.ipynb), [read it](../examples/retrieval.py)")
        '[run it](notebooks/audit-a-model.md), read it'
    """
    return _with_links(markdown, inside_docs=True)


def _with_links(markdown: str, *, inside_docs: bool) -> str:
    def changed(link: re.Match[str]) -> str:
        text, path, place = link[1], link[2], link[3] or ""
        from_root = (path.removeprefix("../") if path.startswith("../") else None) if inside_docs else path
        if from_root is None:
            target = re.sub(r"^(notebooks/[\w-]+)\.ipynb$", r"\1.md", path)
        elif from_root.startswith("docs/"):
            target = from_root.removeprefix("docs/")
        elif from_root.endswith(".md") and "/" not in from_root and from_root != "README.md":
            target = from_root.lower()
        else:
            return text
        return f"[{text}]({target}{place})"

    return _LINK.sub(changed, markdown)
