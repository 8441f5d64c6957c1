"""Notebooks as pages of the site: their text, their code, and what running it gave."""

from __future__ import annotations

from pathlib import Path

__all__ = ["notebook_pages"]


def notebook_pages(folder: Path) -> dict[str, str]:
    """A page for each notebook, by its path on the site."""
    return {}
