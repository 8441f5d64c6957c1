"""How much a page weighs in the search, so that what explains comes before what names."""

from __future__ import annotations

__all__ = ["search_boost"]

_BOOSTS = {"api/": 0.1, "changelog.md": 0.3, "contributing.md": 0.3, "releasing.md": 0.3}


def search_boost(path: str) -> float:
    """What scores of a page are multiplied by.

    Args:
        path: Of the page's source, on the site.

    Example:
        >>> search_boost("read-an-audit.md"), search_boost("api/fenchel.nn.md")
        (1.0, 0.1)
    """
    return next((boost for start, boost in _BOOSTS.items() if path.startswith(start)), 1.0)
