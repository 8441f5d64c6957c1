"""Pages of documentation with tables made from the catalogue."""

from __future__ import annotations

from pathlib import Path

from fenchel.catalogue.registry import ENTRIES
from fenchel.catalogue.table import layer_table
from fenchel.errors import InputError
from fenchel.storage import between_marks, marked_names, write_text

__all__ = ["fill_page", "filled"]

_KIND, _NAME = "catalogue", "layers"


def fill_page(page: Path) -> None:
    """Put the table of the mechanisms that are layers into a page, between its marks.

    Args:
        page: A Markdown file with ``<!-- catalogue: layers -->`` and ``<!-- end of catalogue -->``, each on its line.

    Raises:
        InputError: If the page has no marks.
        OutputError: If it cannot be written.
    """
    text = page.read_text(encoding="utf-8")
    if _NAME not in marked_names(text, _KIND):
        raise InputError(
            f"{page} marks no place for the catalogue; expected <!-- catalogue: layers --> and its end."
        )
    write_text(page, filled(text))


def filled(text: str) -> str:
    """A page's text with the table between its marks."""
    return between_marks(text, _KIND, lambda name: layer_table(ENTRIES.values()) if name == _NAME else None)
