"""Raw text with its words and signs apart by spaces."""

from __future__ import annotations

import re

__all__ = ["separated"]

_PIECES = re.compile(r"\[[A-Z]+\]|<unk>|@\S@|\w+(?:[-'’.]\w+)*|[^\w\s]")


def separated(text: str) -> str:
    """The words and the signs of a text, apart by spaces; hyphens, apostrophes and points within words stay.

    Example:
        >>> separated("A dog's well-known bark (3.5 s) woke [MASK], didn't it?")
        "A dog's well-known bark ( 3.5 s ) woke [MASK] , didn't it ?"
    """
    return " ".join(_PIECES.findall(text))
