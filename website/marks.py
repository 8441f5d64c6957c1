"""Pages with places that are filled when the site is built."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["between_marks"]


def between_marks(text: str, kind: str, made: Callable[[str], str | None]) -> str:
    r"""The page with generated content between its marks, which stay.

    Args:
        text: The page; a place is ``<!-- KIND: NAME -->`` and ``<!-- end of KIND -->``, each on its line.
        kind: Such as ``options``.
        made: The content by name; None leaves what is there.

    Example:
        >>> between_marks("<!-- sum: a -->\n1\n<!-- end of sum -->", "sum", lambda name: "2").splitlines()
        ['<!-- sum: a -->', '', '2', '', '<!-- end of sum -->']
    """

    def replaced(match: re.Match[str]) -> str:
        content = made(match[2])
        return match[0] if content is None else f"{match[1]}\n{content}\n\n{match[3]}"

    return re.sub(
        rf"(<!-- {kind}: ([\w.-]+) -->\n).*?(<!-- end of {kind} -->)", replaced, text, flags=re.DOTALL
    )
