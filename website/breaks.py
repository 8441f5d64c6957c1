"""Where a name in a table may go on in the next line, so that a table fits a phone."""

from __future__ import annotations

import re

__all__ = ["with_breaks"]

_CELL = re.compile(r"<td[^>]*>.*?</td>", flags=re.DOTALL)
_CODE = re.compile(r"<code>([^<]{16,})</code>")


def with_breaks(page: str) -> str:
    """A page's HTML in which long code in a cell may break after a dot, a stroke, a bracket or a low line.

    Args:
        page: HTML.

    Example:
        >>> with_breaks("<td><code>fenchel.functional.gap</code></td>")
        '<td><code>fenchel.<wbr>functional.<wbr>gap</code></td>'
    """
    return _CELL.sub(lambda cell: _CODE.sub(_broken, cell[0]), page)


def _broken(code: re.Match[str]) -> str:
    broken = re.sub(r"([./(_])(?=.)", r"\1<wbr>", code[1])
    return f"<code>{broken}</code>"
