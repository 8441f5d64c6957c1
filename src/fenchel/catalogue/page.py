"""Pages of documentation with tables made from the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fenchel.catalogue.registry import ENTRIES
from fenchel.catalogue.table import layer_table
from fenchel.errors import InputError
from fenchel.io.files import write_text

__all__ = ["between_marks", "fill_page", "filled", "marked_names"]

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


def marked_names(text: str, kind: str) -> tuple[str, ...]:
    r"""The names of the places that a page marks for one kind of what is made.

    Args:
        text: The page; it marks each place by ``<!-- KIND: NAME -->`` and ``<!-- end of KIND -->``, each on its line.
        kind: Such as ``results``.

    Example:
        >>> marked_names("<!-- results: trec -->\nold\n<!-- end of results -->", "results")
        ('trec',)
    """
    return tuple(match[2] for match in _marked(kind).finditer(text))


def between_marks(text: str, kind: str, made: Callable[[str], str | None]) -> str:
    r"""The page with what is made in the place of what stood between its marks, which stay.

    Args:
        text: The page.
        kind: As :func:`marked_names` has it.
        made: The new content by name; None leaves what is there.

    Example:
        >>> between_marks("<!-- sum: a -->\n1\n<!-- end of sum -->", "sum", lambda name: "2").splitlines()
        ['<!-- sum: a -->', '', '2', '', '<!-- end of sum -->']
    """

    def replaced(match: re.Match[str]) -> str:
        content = made(match[2])
        return match[0] if content is None else f"{match[1]}\n{content}\n\n{match[3]}"

    return _marked(kind).sub(replaced, text)


def _marked(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {kind}: ([\w.-]+) -->\n).*?(<!-- end of {kind} -->)", re.DOTALL)
