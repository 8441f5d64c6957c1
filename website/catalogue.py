"""The pages of the catalogue, made from ``fenchel.catalogue``."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["catalogue_pages"]


def catalogue_pages() -> dict[str, str]:
    """A page for each group of entries, by its path on the site; none where the package is not there."""
    if find_spec("fenchel.catalogue") is None:
        return {}
    return {}
